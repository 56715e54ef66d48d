"""Peers that are found: by the DHT with nothing known but one node, and by multicast on a LAN."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.e2e.cli_process import Cli, closed_port, write_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
BYTES = 300_000
IP = shutil.which("ip") or ""


def write_model(folder: Path) -> Path:
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", {"weight": os.urandom(BYTES)})
    return folder


def test_a_name_is_enough_for_who_knows_one_node(tmp_path: Path) -> None:
    """Three processes: one that everybody knows, a seeder, and one who knows only the first."""
    model = write_model(tmp_path / "model")
    with ExitStack() as stack:
        first = stack.enter_context(Cli(tmp_path / "first").start("seed", "--listen", LOOPBACK))
        (known,) = first.wait_for("listening")["addresses"]
        seeder = Cli(tmp_path / "seeder")
        seeding = stack.enter_context(
            seeder.start("seed", model, "--listen", LOOPBACK, "--bootstrap", known)
        )
        published = seeding.wait_for("published")
        link = f"sbp2p://{published['publisher']}/{published['name']}"
        getter = Cli(tmp_path / "getter")
        done = getter.json(
            "get", link, "--to", tmp_path / "copy", "--trust-new", "--bootstrap", known
        )
        assert done.last["cid"] == published["cid"]
        assert done.last["network_bytes"] >= BYTES
        assert [each["peer"] for each in done.last["peers"]] == [published["publisher"]]
        copied = (tmp_path / "copy" / "model.safetensors").read_bytes()
        assert copied == (model / "model.safetensors").read_bytes()


def test_a_cid_is_enough_too_and_the_variable_is_read(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    with ExitStack() as stack:
        first = stack.enter_context(Cli(tmp_path / "first").start("seed", "--listen", LOOPBACK))
        (known,) = first.wait_for("listening")["addresses"]
        seeder = Cli(tmp_path / "seeder", SBP2P_BOOTSTRAP=known)
        seeding = stack.enter_context(seeder.start("seed", model, "--listen", LOOPBACK))
        cid = seeding.wait_for("published")["cid"]
        getter = Cli(tmp_path / "getter", SBP2P_BOOTSTRAP=f" {known} ")
        done = getter.json("get", f"sbp2p:{cid}", "--to", tmp_path / "copy")
        assert done.last["cid"] == cid


def test_who_worked_last_time_is_asked_again(tmp_path: Path) -> None:
    one, two = write_model(tmp_path / "one"), write_model(tmp_path / "two")
    seeder, getter = Cli(tmp_path / "seeder"), Cli(tmp_path / "getter")
    with seeder.start("seed", one, two, "--listen", LOOPBACK) as seeding:
        link = seeding.wait_for("seeding")["link"]
        other = seeding.wait_for("seeding")["cid"]
        getter.json("get", link, "--to", tmp_path / "copy")
        done = getter.json("get", f"sbp2p:{other}", "--to", tmp_path / "other")
        assert done.last["cid"] == other


def test_what_nobody_has_is_given_up(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    lonely = Cli(tmp_path / "lonely")
    cid = lonely.json("publish", model).last["cid"]
    with Cli(tmp_path / "first").start("seed", "--listen", LOOPBACK) as first:
        (known,) = first.wait_for("listening")["addresses"]
        getter = Cli(tmp_path / "getter")
        done = getter.run(
            *("get", f"sbp2p:{cid}", "--to", tmp_path / "copy", "--bootstrap", known), code=3
        )
        assert "none of 1 peers that answered knows version" in done.err


def test_a_dead_bootstrap_peer_is_named(tmp_path: Path) -> None:
    lonely = Cli(tmp_path / "lonely")
    cid = lonely.json("publish", write_model(tmp_path / "model")).last["cid"]
    peer = lonely.json("id").last["peer"]
    with closed_port() as port:
        dead = f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"
        done = Cli(tmp_path / "getter").run(
            "get", f"sbp2p:{cid}", "--to", tmp_path / "copy", "--bootstrap", dead, code=4
        )
    assert "refused" in done.err


@pytest.mark.parametrize("text", ["nonsense", "/ip4/127.0.0.1/tcp/1"])
def test_what_is_no_bootstrap_address_is_refused(text: str, tmp_path: Path) -> None:
    done = Cli(tmp_path / "node").run("seed", "--bootstrap", text, code=2)
    assert "bootstrap" in done.err


# -- multicast -------------------------------------------------------------------------------------


@contextmanager
def lan_namespace() -> Iterator[list[str]]:
    """Yield the beginning of a command that runs where `lan0` is the only network."""
    if sys.platform != "linux" or os.geteuid() != 0 or not IP:
        pytest.skip("network namespaces need root on Linux, and `ip`")
    name = f"sbp2p-get-{os.getpid()}"
    made = subprocess.run([IP, "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.decode().strip()}")
    try:
        for words in (
            "link add lan0 type veth peer name lan1",
            "link set lan1 up",
            "addr add 10.78.0.1/24 dev lan0",
            "link set lan0 up multicast on",
            "link set lo up",
        ):
            subprocess.run([IP, "-n", name, *words.split()], check=True)
        yield [IP, "netns", "exec", name]
    finally:
        subprocess.run([IP, "netns", "del", name], check=True)


class LanCli(Cli):
    """`sbp2p` in a namespace, with multicast."""

    def __init__(self, home: Path, prefix: list[str]) -> None:
        super().__init__(home, SBP2P_NO_LAN="")
        self._prefix = prefix

    def argv(self, *words: object) -> list[str]:
        return [*self._prefix, *super().argv(*words)]


def test_a_seeder_on_the_lan_is_found_by_the_link_alone(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    with lan_namespace() as prefix:
        seeder, getter = LanCli(tmp_path / "seeder", prefix), LanCli(tmp_path / "getter", prefix)
        with seeder.start("seed", model, "--listen", "/ip4/0.0.0.0/tcp/0") as seeding:
            published = seeding.wait_for("published")
            done = getter.json("get", f"sbp2p:{published['cid']}", "--to", tmp_path / "copy")
            assert done.last["network_bytes"] >= BYTES
            link = f"sbp2p://{published['publisher']}/{published['name']}"
            again = getter.json("get", link, "--to", tmp_path / "named", "--trust-new")
            assert again.last["cid"] == published["cid"]
            silent = LanCli(tmp_path / "silent", prefix)
            words = ("get", f"sbp2p:{published['cid']}", "--to", tmp_path / "no", "--no-lan")
            silent.run(*words, code=4)
