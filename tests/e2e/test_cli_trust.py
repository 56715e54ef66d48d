"""`sbp2p trust` as a process, and what a fetch makes of it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from sbp2p_keys.identity import PrivateKey
from tests.e2e.cli_process import Cli, environment, write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

ANN, BEN = (str(PrivateKey.from_seed(bytes([n]) * 32).peer_id) for n in range(1, 3))


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


def test_pins_are_made_shown_and_taken_back(cli: Cli) -> None:
    assert cli.run("trust").out == "policy  first-use: a new publisher is asked about, and pinned\n"
    assert not cli.home.exists(), "showing makes nothing"
    assert cli.json("trust", "pin", "org/m", ANN).last == {
        "event": "pinned",
        "name": "org/m",
        "publisher": ANN,
    }
    done = cli.run("trust", "pin", "org/m", BEN)
    assert done.out == f"org/m is pinned to {BEN}\n"
    assert f"it stays pinned to {ANN}, too" in done.err
    lines = cli.run("trust", "list").out.splitlines()
    assert lines[2].split() == ["NAME", "PUBLISHER", "SINCE", "STATE"]
    assert {tuple(line.split()[:2]) for line in lines[3:]} == {("org/m", ANN), ("org/m", BEN)}
    assert all(line.endswith("pinned") for line in lines[3:])
    assert cli.json("trust", "unpin", "org/m", ANN).last["event"] == "unpinned"
    done = cli.json("trust", "unpin", "org/m", ANN, code=3)
    assert done.last["hint"] == "`sbp2p trust` lists the pins"
    assert "nobody is pinned" in cli.run("trust", "unpin", "org/m", BEN).err
    assert cli.json("trust").last["pins"] == []


def test_a_key_is_revoked_once_and_for_good(cli: Cli) -> None:
    cli.run("trust", "pin", "*", ANN)
    first = cli.json("trust", "revoke", ANN, "--reason", "laptop \u202estolen").last
    assert (first["event"], first["publisher"]) == ("revoked", ANN)
    done = cli.run("trust", "revoke", ANN, "--reason", "another")
    assert "it was revoked before" in done.err
    text = cli.run("trust").out
    assert r"laptop \u202estolen" in text
    assert text.splitlines()[3].endswith("revoked")
    shown = cli.json("trust", "list").last
    assert shown["revoked"] == [
        {"publisher": ANN, "since": first["since"], "reason": "laptop \u202estolen"}
    ]
    assert [each["live"] for each in shown["pins"]] == [False]
    assert "pin a new key" in cli.run("trust", "pin", "m", ANN, code=9).err


def test_the_policy_is_changed(cli: Cli) -> None:
    for name in ("pinned-only", "any", "first-use"):
        assert cli.json("trust", "policy", name).last == {"event": "policy", "policy": name}
        assert cli.json("trust").last["policy"] == name
        assert cli.run("trust").out.startswith(f"policy  {name}: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pin", "m", "nobody"], "'nobody' is not a peer id"),
        (["pin", "a/..", ANN], "'a/..' cannot name a model"),
        (["pin", "m"], "missing argument 'PEER'"),
        (["frob"], "no such command 'frob'"),
        (["policy", "some"], "no such policy: 'some'"),
        (["policy"], "missing argument 'POLICY'"),
        (["revoke", ANN, "--reason", "a\nb"], "--reason: reason has control characters"),
        (["revoke", ANN, "--reason", "x" * 1025], "--reason: reason is longer"),
        (["list", "more"], "unexpected extra argument"),
    ],
)
def test_arguments_that_mean_nothing(cli: Cli, words: list[str], message: str) -> None:
    done = cli.json("trust", *words, code=2)
    assert message in done.last["error"]
    assert done.last["hint"]
    assert not cli.home.exists()


def test_common_options_may_stand_anywhere(cli: Cli) -> None:
    home = str(cli.home)
    here = Cli(cli.home.parent / "unused")
    expected = cli.json("trust").last
    for words in (
        ["--json", "--home", home, "trust"],
        ["trust", "--json", f"--home={home}", "list"],
        ["--home", home, "trust", "list", "--json"],
    ):
        argv = here.argv(*words)[:-2]  # without the home that it adds
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment())
        assert json.loads(done.stdout) == expected


def test_a_damaged_store_is_never_replaced(cli: Cli) -> None:
    cli.home.mkdir()
    file = cli.home / "trust.json"
    file.write_text("{}")
    file.chmod(0o600)
    for words in (["trust"], ["trust", "pin", "m", ANN], ["trust", "revoke", ANN]):
        assert str(file) in cli.run(*words, code=9).err
    assert file.read_text() == "{}"


def test_the_command_in_the_hint_is_the_way_out(cli: Cli, tmp_path: Path) -> None:
    model = tmp_path / "my model"
    model.mkdir()
    write_safetensors(model / "model.safetensors", {"w": bytes(1000)})
    publisher = Cli(tmp_path / "publisher")
    link = publisher.json("publish", model).last["link"]
    cli.run("trust", "pin", "my model", ANN)
    with publisher.start("seed", "--listen", "/ip4/127.0.0.1/tcp/0") as seeder:
        link = seeder.wait_for("seeding")["link"]
        hint = cli.json("get", link, "--to", tmp_path / "copy", code=9).last["hint"]
        command = hint.partition("`")[2].partition("`")[0]
        assert command.endswith(f"--home {cli.home}")
        assert command.startswith("sbp2p trust pin 'my model' 12D3KooW")
        peer = command.split()[-3]
        cli.run("trust", "pin", "my model", peer)
        cli.run("get", link, "--to", tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").exists()
