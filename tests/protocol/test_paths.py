from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.paths import (
    RESERVED_PREFIX,
    check_name,
    check_path,
    check_siblings,
    collision_key,
    is_reserved,
    path_order,
)

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "names.json"
VECTORS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", VECTORS["allowed"])
def test_names_that_every_system_stores(name: str) -> None:
    assert check_name(name) is None
    assert check_path(f"{name}/{name}") is None


@pytest.mark.parametrize("name", VECTORS["refused"], ids=ascii)
def test_names_that_some_system_refuses_or_misreads(name: str) -> None:
    assert check_name(name) is not None
    assert check_path(f"ok/{name}") is not None or "/" in name


@pytest.mark.parametrize("path", VECTORS["refused_paths"])
def test_paths_that_leave_or_repeat_or_are_taken(path: str) -> None:
    assert check_path(path) is not None


def test_only_a_dot_is_folded_to_a_dot() -> None:
    folded = [chr(c) for c in range(0x110000) if collision_key(chr(c)).startswith(".")]
    assert folded == ["."], "is_reserved looks at the first character"


@given(st.text("sbp2SBPq.\u017f-", max_size=9))
def test_no_allowed_name_can_be_taken_for_one_of_ours(name: str) -> None:
    if check_name(name) is None:
        assert not collision_key(name).startswith(RESERVED_PREFIX)
        assert not is_reserved(name)


def test_path_length_is_bounded_in_bytes() -> None:
    assert check_path("/".join(["\u00e9" * 120] * 17)) is None
    reason = check_path("/".join(["\u00e9" * 120] * 18))
    assert reason is not None
    assert "4096" in reason


@pytest.mark.parametrize(("one", "other"), VECTORS["refused_together"], ids=ascii)
def test_names_that_some_file_system_merges(one: str, other: str) -> None:
    assert collision_key(one) == collision_key(other)
    assert check_siblings(["x", one, other]) is not None


@pytest.mark.parametrize(("one", "other"), VECTORS["allowed_together"], ids=ascii)
def test_siblings_that_stay_apart(one: str, other: str) -> None:
    assert check_siblings([one, other]) is None


def test_order_is_name_by_name() -> None:
    paths = ["a.txt", "a/b", "a", "a/a/z", "Z", "\u00e9", "a-b"]
    assert sorted(paths, key=path_order) == ["Z", "a", "a/a/z", "a/b", "a-b", "a.txt", "\u00e9"]


@given(st.text())
def test_a_good_path_has_only_good_names(text: str) -> None:
    if check_path(text) is None:
        assert all(check_name(name) is None for name in text.split("/"))
        text.encode("utf-8")


def test_no_character_of_a_name_is_invisible() -> None:
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    for number in range(0x110000):
        letter = chr(number)
        if unicodedata.category(letter) in hidden:
            assert check_name(f"a{letter}b") is not None, f"U+{number:04X}"
