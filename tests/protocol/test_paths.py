from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.paths import (
    check_name,
    check_path,
    check_siblings,
    collision_key,
    path_order,
)


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        ".gitattributes",
        "1_Pooling",
        "..data",
        "a b",
        "-rf",
        "\u6a21\u578b",
        "caf\u00e9",
        "cafe\u0301",
        "\U0001f600",
        "console",
        "com",
        "com10",
        "nul-1.txt",
        "x" * 255,
        "\u00e9" * 127,
    ],
)
def test_names_that_every_system_stores(name: str) -> None:
    assert check_name(name) is None
    assert check_path(f"{name}/{name}") is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a\\b",
        "a\x00",
        "a\n",
        "\x7f",
        "\x85",
        "a\u202eb",
        "\u200e",
        "\u2066",
        "\u061c",
        "\u2028",
        "\ud800",
        "a:b",
        "C:",
        "a?",
        "a*",
        'a"',
        "a<",
        "a|b",
        "dot.",
        "space ",
        "CON",
        "con",
        "Nul.txt",
        "aux .tar.gz",
        "PRN.",
        "com1",
        "LPT9.x",
        "COM\u00b9.x",
        "CONIN$",
        "x" * 256,
        "\u00e9" * 128,
    ],
)
def test_names_that_some_system_refuses_or_misreads(name: str) -> None:
    assert check_name(name) is not None
    assert check_path(f"ok/{name}") is not None


def test_a_name_has_no_slash() -> None:
    assert check_name("a/b") is not None


@pytest.mark.parametrize("path", ["", "/", "/etc", "a//b", "a/", "../a", "a/./b", "a/" * 32 + "a"])
def test_paths_that_leave_or_repeat(path: str) -> None:
    assert check_path(path) is not None


def test_path_length_is_bounded_in_bytes() -> None:
    assert check_path("/".join(["\u00e9" * 120] * 17)) is None
    reason = check_path("/".join(["\u00e9" * 120] * 18))
    assert reason is not None
    assert "4096" in reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("README", "readme"),
        ("caf\u00e9", "cafe\u0301"),
        ("stra\u00dfe", "STRASSE"),
        ("\u212b", "\u00e5"),
        ("same", "same"),
    ],
)
def test_names_that_some_file_system_merges(one: str, other: str) -> None:
    assert collision_key(one) == collision_key(other)
    assert check_siblings(["x", one, other]) is not None


def test_siblings_that_stay_apart() -> None:
    assert check_siblings(["a", "b", "a.txt", "\u00e0"]) is None


def test_order_is_name_by_name() -> None:
    paths = ["a.txt", "a/b", "a", "a/a/z", "Z", "\u00e9", "a-b"]
    assert sorted(paths, key=path_order) == ["Z", "a", "a/a/z", "a/b", "a-b", "a.txt", "\u00e9"]


@given(st.text())
def test_a_good_path_has_only_good_names(text: str) -> None:
    if check_path(text) is None:
        assert all(check_name(name) is None for name in text.split("/"))
        text.encode("utf-8")
