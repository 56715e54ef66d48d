"""`sbp2p follow` as processes on loopback: new versions, their folders, restarts, wrong links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.cli_process import Cli, Running, write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

LOCAL = "/ip4/127.0.0.1/tcp/0"
SHARED = bytes(range(256)) * 512


class Publisher:
    """A home that publishes versions of one model, and a seed of it."""

    def __init__(self, folder: Path) -> None:
        self.cli = Cli(folder / "publisher")
        self._folder = folder
        self.peer = self.cli.json("id").last["peer"]

    def publish(self, number: int) -> None:
        """Publish another version: one tensor stays, one is new."""
        path = self._folder / f"v{number}"
        path.mkdir()
        changed = bytes([number]) * 100_000
        write_safetensors(path / "model.safetensors", {"same": SHARED, "changed": changed})
        self.cli.run("publish", path, "--name", "model")

    def seed(self) -> Running:
        return self.cli.start("seed", "--listen", LOCAL)

    def link(self, seed: Running) -> str:
        address = seed.wait_for("listening")["addresses"][0]
        return f"sbp2p://{self.peer}/model?peer={address}"


def content(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def test_each_new_version_is_fetched_as_it_appears(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(1)
    follower = Cli(tmp_path / "follower")
    out = tmp_path / "models"
    with publisher.seed() as seed:
        link = publisher.link(seed)
        words = ("follow", link, "--to", out, "--keep", 1, "--trust-new")
        with follower.start(*words) as following:
            found = following.wait_for("new_version")
            assert (found["version"], found["name"]) == (1, "model")
            assert (found["rollbacks"], found["contradictions"]) == (0, 0)
            assert following.wait_for("done")["destination"] == str(out / "1")
            publisher.publish(2)
            assert following.wait_for("new_version")["version"] == 2
            done = following.wait_for("done")
            assert done["destination"] == str(out / "2")
            assert done["local_bytes"] >= len(SHARED)
            assert done["network_bytes"] <= 110_000
            assert content(out / "2") == content(tmp_path / "v2")
            assert following.wait_for("removed")["version"] == 1
            assert not (out / "1" / "model.safetensors").exists()
            assert following.interrupt().code == 0
        again = follower.json(*words, "--once-current")
        assert again.last["version"] == 2
        assert again.last["network_bytes"] == 0
        older = follower.json("get", link.replace("?", "@1?"), "--to", tmp_path / "old")
        assert older.last["version"] == 1


def test_a_version_can_take_the_place_of_the_one_before(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(1)
    follower = Cli(tmp_path / "follower")
    out = tmp_path / "model"
    with publisher.seed() as seed:
        words = ("follow", publisher.link(seed), "--to", out, "--in-place", "--trust-new")
        with follower.start(*words) as following:
            following.wait_for("done")
            assert content(out) == content(tmp_path / "v1")
            publisher.publish(2)
            following.wait_for("done")
            assert content(out) == content(tmp_path / "v2")
            following.interrupt()


def test_a_publisher_that_is_away_is_waited_for(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(1)
    follower = Cli(tmp_path / "follower")
    with publisher.seed() as seed:
        link = publisher.link(seed)
        port = link.rpartition("/tcp/")[2].partition("/")[0]
        seed.interrupt()
    with follower.start("follow", link, "--to", tmp_path / "out", "--trust-new") as following:
        assert following.wait_for("trouble")["error"]
        with publisher.cli.start("seed", "--listen", f"/ip4/127.0.0.1/tcp/{port}"):
            assert following.wait_for("done")["version"] == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("{manifest}",), "never changes"),
        (("{name}@3",), "never changes"),
        (("{name}", "--in-place"), "--to DIR"),
        (("{name}", "--in-place", "--to", "x", "--keep", "1"), "only one"),
        (("{name}", "--to", ""), "empty"),
        (("{name}", "--listen", LOCAL), "--seed"),
        (("{hidden}",), "hidden"),
    ],
)
def test_what_cannot_be_followed(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    peer = "12D3KooWLU2znyJMtDiHArqAGbZn8CgUGp92kxDBtefftEEaHSZS"
    texts = {
        "manifest": "sbp2p:bafyr4idsivfwphyqgeykafapwerxokcwof3matullc4qn5fnejo3jsfw5i",
        "name": f"sbp2p://{peer}/model",
        "hidden": f"sbp2p://{peer}/.ssh",
    }
    done = Cli(tmp_path / "home").run("follow", *(word.format(**texts) for word in words), code=2)
    assert reason in done.err
    assert not (tmp_path / "home").exists()
