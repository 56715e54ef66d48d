"""Private swarms, with real processes: the owner, a member, and whoever is none."""

from __future__ import annotations

import stat
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.e2e.cli_process import Cli, environment, write_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
PEER = "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"


@pytest.fixture
def owner(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path / "owner")
    cli.run("swarm", "create", "--expires", "30d")
    write_safetensors(tmp_path / "model.safetensors", {"w": bytes(range(256)) * 4000})
    cli.run("publish", tmp_path / "model.safetensors", "--name", "secret-model")
    return cli


def peer_id(cli: Cli) -> str:
    return str(cli.json("id").last["peer"])


@contextmanager
def seeding(cli: Cli) -> Iterator[tuple[str, str]]:
    """Seed what is there; yields the link and the address in it."""
    with cli.start("seed", "--listen", LOOPBACK) as running:
        link = str(running.wait_for("seeding")["link"])
        yield link, link.partition("peer=")[2]
        assert running.interrupt().code == 0


def invite(owner: Cli, guest: Cli, path: Path) -> Path:
    done = owner.json("swarm", "invite", peer_id(guest), "--to", path)
    assert done.last["event"] == "invited"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path


def bench(cli: Cli, address: str, code: int = 0) -> str:
    """Connect and measure; returns what went to stderr."""
    return cli.run("bench", address, "--size", 1, "--pings", 1, code=code).err


def test_members_fetch_and_others_do_not(owner: Cli, tmp_path: Path) -> None:
    member, stranger = Cli(tmp_path / "member"), Cli(tmp_path / "stranger")
    file = invite(owner, member, tmp_path / "member.swarm")
    assert member.json("swarm", "join", file).last["event"] == "joined"
    with seeding(owner) as (link, address):
        member.run("get", link, "--to", tmp_path / "got")
        why = bench(stranger, address, code=4)
        assert "does not decrypt" in why or "closed" in why
        # the file of another member is of no use
        done = stranger.run("get", link, "--swarm", file, code=9)
        assert "this invitation is for" in done.err
        # a process beside the one that seeds has a key of its own, which the member lends its place
        with member.start("seed", "--listen", LOOPBACK) as beside:
            beside.wait_for("listening")
            bench(member, address)
            assert beside.interrupt().code == 0
    assert (tmp_path / "got" / "model.safetensors").exists()


def test_revoked_while_the_owner_seeds(owner: Cli, tmp_path: Path) -> None:
    """A second process of the owner's home changes what the first one goes by."""
    member = Cli(tmp_path / "member")
    member.run("swarm", "join", invite(owner, member, tmp_path / "member.swarm"))
    with seeding(owner) as (_, address):
        bench(member, address)
        assert owner.json("swarm", "revoke", peer_id(member)).last["number"] == 1
        deadline = time.monotonic() + 30  # the running node looks at its file every five seconds
        while time.monotonic() < deadline:
            argv = member.argv("bench", address, "--size", 1, "--pings", 1)
            if subprocess.run(argv, check=False, env=environment(), capture_output=True).returncode:
                break
        bench(member, address, code=4)
        states = [each["state"] for each in owner.json("swarm", "show").last["members"]]
        assert states == ["member", "revoked"]
        # invited again, it is a member again
        again = invite(owner, member, tmp_path / "again.swarm")
        member.run("swarm", "join", again)
        bench(member, address)


def test_what_cannot_be_done(owner: Cli, tmp_path: Path) -> None:
    guest, me = Cli(tmp_path / "guest"), peer_id(owner)
    for words, code, message in (
        (["create"], 2, "belongs to a private swarm already"),
        (["leave"], 2, "this home owns the swarm"),
        (["revoke", me], 2, "the owner's own node"),
        (["invite", PEER, "--expires", "soon"], 2, "is no time span and no date"),
        (["invite", PEER, "--only", "look"], 2, "no such thing"),
        (["invite", PEER, "--to", str(owner.home)], 2, "is there already"),
        (["join", str(tmp_path / "nothing")], 9, "nothing"),
    ):
        assert message in owner.run("swarm", *words, code=code).err, words
    for words, code, message in (
        (["invite", me], 2, "owns no private swarm"),
        (["leave"], 2, "belongs to no private swarm"),
    ):
        assert message in guest.run("swarm", *words, code=code).err
    assert guest.json("swarm").last["private"] is False
    assert "whose key is here" in owner.run("swarm").out
