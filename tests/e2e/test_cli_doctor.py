"""`sbp2p doctor`: real processes with something wrong, and whether it is told."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.cli_process import Cli, Done, closed_port, write_safetensors
from tests.e2e.test_cli_finding import IP, LanCli, lan_namespace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
SICK = 10


def findings(done: Done, topic: str, level: str | None = None) -> list[dict[str, Any]]:
    """Return what was found about a topic."""
    return [
        event
        for event in done.events
        if event["event"] == "finding"
        and event["topic"] == topic
        and level in (None, event["level"])
    ]


def examine(cli: Cli, *words: object, code: int = SICK) -> Done:
    return cli.json("doctor", *words, "--listen", LOOPBACK, "--wait", "1.5", code=code)


def model_in(folder: Path) -> Path:
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", {"weight": os.urandom(100_000)})
    return folder


def test_a_healthy_pair(tmp_path: Path) -> None:
    seeder, looker = Cli(tmp_path / "seeder"), Cli(tmp_path / "looker")
    with seeder.start("seed", model_in(tmp_path / "model"), "--listen", LOOPBACK) as seeding:
        (address,) = seeding.wait_for("listening")["addresses"]
        link = seeding.wait_for("seeding")["link"]
        done = examine(looker, link, "--bootstrap", address, code=0)
        assert not [event for event in done.events if event.get("level") == "bad"]
        for topic in ("key", "clock", "disk", "files", "listening", "bootstrap", "DHT"):
            assert findings(done, topic, "ok"), topic
        for topic in ("address", "connection", "protocols", "version"):
            assert findings(done, topic, "ok"), topic
        (found,) = findings(done, "address")
        assert "answered within" in found["text"]
        assert done.last["event"] == "doctor"
        assert done.last["bad"] == 0
        people = looker.run("doctor", address, "--listen", LOOPBACK, "--bootstrap", address)
        assert people.out.splitlines()[0].startswith("ok    key")
        by_id = examine(looker, address.rpartition("/")[2], "--bootstrap", address, code=0)
        assert findings(by_id, "peer", "ok")


def test_dead_addresses(tmp_path: Path) -> None:
    looker = Cli(tmp_path / "looker")
    peer = Cli(tmp_path / "other").json("id").last["peer"]
    with closed_port() as port:
        dead = f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"
        done = examine(looker, dead, "--bootstrap", dead)
    (found,) = findings(done, "address", "bad")
    assert "connection refused" in found["text"]
    assert "port" in found["next"]
    (found,) = findings(done, "bootstrap", "bad")
    assert "connection refused" in found["text"]
    assert findings(done, "DHT", "bad")
    assert done.last["bad"] >= 3


def test_somebody_else_at_an_address(tmp_path: Path) -> None:
    looker = Cli(tmp_path / "looker")
    stranger = Cli(tmp_path / "stranger").json("id").last["peer"]
    with Cli(tmp_path / "seeder").start("seed", "--listen", LOOPBACK) as seeding:
        (address,) = seeding.wait_for("listening")["addresses"]
        there = address.rpartition("/")[2]
        done = examine(looker, address.replace(there, stranger))
        (found,) = findings(done, "address", "bad")
        assert there in found["text"]
        assert stranger in found["text"]
        assert "new link" in found["next"]
        # without an id in it, whoever is there is told
        done = examine(looker, address.rpartition("/p2p/")[0], code=0)
        (found,) = findings(done, "address", "ok")
        assert there in found["text"]


def test_a_gate_that_stays_shut(tmp_path: Path) -> None:
    looker = Cli(tmp_path / "looker")
    friend = Cli(tmp_path / "friend").json("id").last["peer"]
    seeder = Cli(tmp_path / "seeder")
    words = ("seed", model_in(tmp_path / "model"), "--listen", LOOPBACK, "--allow", friend)
    with seeder.start(*words) as seeding:
        link = seeding.wait_for("seeding")["link"]
        done = examine(looker, link)
        assert findings(done, "address", "ok")
        (found,) = findings(done, "connection", "bad")
        assert looker.json("id").last["peer"] in found["next"]


def test_a_version_that_is_not_there(tmp_path: Path) -> None:
    other = Cli(tmp_path / "other").json("publish", model_in(tmp_path / "model")).last["cid"]
    with Cli(tmp_path / "seeder").start("seed", "--listen", LOOPBACK) as seeding:
        (address,) = seeding.wait_for("listening")["addresses"]
        done = examine(Cli(tmp_path / "looker"), f"sbp2p:{other}?peer={address}")
        (found,) = findings(done, "version", "bad")
        assert "does not have" in found["text"]


def test_a_busy_port_and_a_running_node(tmp_path: Path) -> None:
    seeder = Cli(tmp_path / "seeder")
    with seeder.start("seed", "--listen", LOOPBACK) as seeding:
        (address,) = seeding.wait_for("listening")["addresses"]
        port = address.split("/")[4]
        listen = f"/ip4/127.0.0.1/tcp/{port}"
        done = seeder.json("doctor", "--listen", listen, "--wait", "1", code=SICK)
        (found,) = findings(done, "port", "bad")
        assert "in use" in found["text"]
        assert "another process" in findings(done, "process")[0]["text"]
        assert findings(done, "listening", "bad")


def test_a_key_that_cannot_be_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "identity.pem").write_text("not a key\n")
    done = examine(Cli(home))
    (found,) = findings(done, "key", "bad")
    assert found["text"]
    assert len(done.events) == 2


def test_a_clock_that_is_behind(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    cli.json("id")
    key = tmp_path / "home" / "identity.pem"
    os.utime(key, (4e9, 4e9))
    done = examine(cli)
    assert findings(done, "clock", "bad")


@pytest.mark.parametrize("text", ["nonsense", "sbp2p:nonsense", "/ip4/1.2.3.4/udp/5/quic-v1"])
def test_what_is_no_target_is_refused(text: str, tmp_path: Path) -> None:
    Cli(tmp_path / "home").run("doctor", text, code=2)


def test_multicast_is_tried(tmp_path: Path) -> None:
    with lan_namespace() as prefix:
        seeder, looker = LanCli(tmp_path / "seeder", prefix), LanCli(tmp_path / "looker", prefix)
        alone = looker.json("doctor", "--wait", "2")
        assert "0 peers" in findings(alone, "LAN", "ok")[0]["text"]
        with seeder.start("seed", "--listen", "/ip4/0.0.0.0/tcp/0") as seeding:
            seeding.wait_for("listening")
            done = looker.json("doctor", "--wait", "3")
            assert "1 peer" in findings(done, "LAN", "ok")[0]["text"]
    assert IP
