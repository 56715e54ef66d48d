"""Every command as a process, on loopback, with a checkpoint of a few kilobytes."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.cli_process import Cli, Done, Running, write_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
VERSION_FIELDS = {
    *("cid", "link", "name", "version", "publisher", "path", "size", "files", "created"),
    *("complete", "published_here", "pinned"),
}


@dataclass(frozen=True)
class World:
    """A publisher with one version, seeding."""

    model: Path
    publisher: Cli
    seeder: Running
    peer: str
    address: str
    published: dict[str, Any]
    link: str

    @property
    def name_link(self) -> str:
        return f"sbp2p://{self.published['publisher']}/tiny?peer={self.address}"


def make_model(folder: Path) -> Path:
    noise = random.Random(1)  # noqa: S311  (the same bytes every time)
    folder.mkdir()
    tensors = {f"layer.{n}.weight": noise.randbytes(70_000) for n in range(3)}
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text('{"layers": 3}\n')
    (folder / "empty").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.mktemp("world")
    model = make_model(base / "model")
    publisher = Cli(base / "publisher")
    published = publisher.json("publish", model, "--name", "tiny", "--meta", "kind=test").last
    with publisher.start("seed", "--listen", LOOPBACK) as seeder:
        listening = seeder.wait_for("listening")
        link = seeder.wait_for("seeding")["link"]
        yield World(
            model, publisher, seeder, listening["peer"], listening["addresses"][0], published, link
        )


@pytest.fixture
def reader(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "reader")


def assert_lean(done: Done) -> None:
    """Check in the import times on stderr that nothing was loaded that no transfer needs."""
    modules = {line.rpartition("|")[2].strip() for line in done.err.splitlines()}
    assert "sbp2p.node" in modules
    assert not modules & {"torch", "numpy", "safetensors", "rich", "asyncio"}


def same_files(one: Path, other: Path) -> bool:
    def content(folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return content(one) == content(other)


# -- id --------------------------------------------------------------------------------------------


def test_id_makes_an_identity_once(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "new" / "home")
    first = cli.json("id").last
    assert first == {
        "event": "id",
        "peer": first["peer"],
        "key_file": str(cli.home / "identity.pem"),
        "home": str(cli.home),
        "encrypted": False,
        "created": True,
    }
    assert first["peer"].startswith("12D3KooW")
    done = cli.run("id")
    assert done.out.splitlines()[0] == f"peer id   {first['peer']}"
    assert (done.err, cli.json("id").last["created"]) == ("", False)


def test_id_can_protect_the_key(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    plain = cli.json("id").last
    right, wrong = (Cli(cli.home, SBP2P_PASSPHRASE=word) for word in ("correct", "other"))
    sealed = right.json("id", "--passphrase").last
    assert (sealed["encrypted"], sealed["peer"]) == (True, plain["peer"])
    assert plain["peer"] in right.run("id").out
    assert "hint: set SBP2P_PASSPHRASE" in cli.run("id", code=9).err
    assert "does not open" in wrong.run("id", code=9).err
    # what only looks at what is here needs no key
    assert cli.run("ls").out == ""


# -- publish, ls, inspect, verify, rm --------------------------------------------------------------


def test_publish_prints_the_link_alone_on_stdout(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    cli = Cli(tmp_path / "home")
    done = cli.run("--quiet", "publish", model)
    assert done.err == ""
    link = done.out.strip()
    assert link.startswith("sbp2p:bafy")
    again = cli.run("publish", model, PYTHONPROFILEIMPORTTIME="1")
    assert_lean(again)
    assert again.out == done.out
    assert "unchanged since model version 1: 210 kB, 3 files, 3 tensors" in again.err


def test_publish_as_an_event(world: World) -> None:
    fields = world.published
    assert set(fields) == {
        *("event", "link", "cid", "name", "version", "publisher", "size", "files", "tensors"),
        *("blocks", "seconds", "unchanged", "notes"),
    }
    assert fields["link"] == f"sbp2p:{fields['cid']}"
    size = sum(path.stat().st_size for path in world.model.iterdir())
    assert (fields["event"], fields["name"], fields["version"]) == ("published", "tiny", 1)
    assert (fields["size"], fields["files"], fields["tensors"]) == (size, 3, 3)
    assert fields["publisher"] == world.peer


def test_publish_takes_a_number_facts_and_parents(world: World, tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    words = ("--version", 7, "--meta", "a=b=c", "--parent", world.link, "--name", "org/x")
    published = cli.json("publish", world.model, *words).last
    assert published["version"] == 7
    shown = cli.json("inspect", "org/x@7").last
    assert shown["meta"] == {"a": "b=c"}
    assert shown["parents"] == [world.published["cid"]]
    assert (
        "numbers only grow"
        in cli.run(
            "publish", world.model, "--version", 7, "--name", "org/x", "--meta", "a=d", code=2
        ).err
    )


def test_ls(world: World) -> None:
    listed = world.publisher.json("ls").events
    assert [event["event"] for event in listed] == ["version"]
    assert set(listed[0]) == VERSION_FIELDS | {"event"}
    assert listed[0]["path"] == str(world.model)
    head, row = world.publisher.run("ls").out.splitlines()
    assert head.split() == ["VERSION", "SIZE", "FILES", "CID", "STATE", "PATH"]
    assert row.split()[:4] == ["tiny@1", "210", "kB", "3"]


def test_inspect_a_path_publishes_nothing(world: World, reader: Cli) -> None:
    shown = reader.json("inspect", world.model, "--tensors").last
    assert shown["event"] == "checkpoint"
    formats = {file["path"]: file["format"] for file in shown["files"]}
    assert formats == {
        "config.json": "opaque",
        "empty": "opaque",
        "model.safetensors": "safetensors",
    }
    assert [tensor["name"] for tensor in shown["tensors"]] == [
        f"layer.{n}.weight" for n in range(3)
    ]
    assert shown["dtypes"] == {"U8": 210_000}
    assert not reader.home.exists()


def test_inspect_a_link_fetches_no_content(world: World, reader: Cli) -> None:
    shown = reader.json("inspect", world.link, "--tensors").last
    assert shown["event"] == "version"
    assert (shown["cid"], shown["signers"]) == (world.published["cid"], [world.peer])
    assert shown["meta"] == {"kind": "test"}
    assert {file["path"] for file in shown["files"]} == {
        "config.json",
        "empty",
        "model.safetensors",
    }
    assert [tensor["shape"] for tensor in shown["tensors"]] == [[70_000]] * 3
    assert reader.run("ls").out == ""


def test_inspect_a_version_that_is_here(world: World) -> None:
    text = world.publisher.run("inspect", "tiny", "--tensors").out
    assert f"publisher  {world.peer}" in text
    assert "meta       kind = test" in text
    assert "layer.2.weight" in text


def test_verify_names_what_is_damaged(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    cli = Cli(tmp_path / "home")
    cli.run("publish", model)
    assert "is good" in cli.run("verify", "model").out
    damaged = bytearray((model / "model.safetensors").read_bytes())
    damaged[100_000] ^= 1
    (model / "model.safetensors").write_bytes(damaged)
    done = cli.json("verify", model, code=5)
    verified = next(event for event in done.events if event["event"] == "verified")
    assert not verified["ok"]
    assert [item["path"] for item in verified["damaged"]] == [str(model / "model.safetensors")]
    assert done.last["exit_code"] == 5
    assert "1 file of 3 damaged" in done.err


def test_rm_needs_a_yes(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    cli = Cli(tmp_path / "home")
    cli.run("publish", model)
    assert "hint: say --yes" in cli.run("rm", "model", code=2).err
    removed = cli.json("rm", "model", "--yes", "--files").last
    assert (removed["event"], removed["name"], removed["version"]) == ("removed", "model", 1)
    assert (removed["files_deleted"], len(list(model.iterdir()))) == (0, 3), "they were not fetched"
    empty = cli.run("ls")
    assert (empty.out, empty.err[:17]) == ("", "nothing here yet:")


# -- seed, get, bench ------------------------------------------------------------------------------


def test_get_fetches_and_reports(world: World, reader: Cli, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    done = reader.json("get", world.link, "--to", copy)
    assert same_files(world.model, copy)
    kinds = [event["event"] for event in done.events]
    assert kinds[-1] == "done"
    assert set(kinds) == {"connected", "progress", "done"}
    connected = next(event for event in done.events if event["event"] == "connected")
    assert connected["peer"] == world.peer
    fields = done.last
    assert set(fields) == {
        *("event", "cid", "name", "version", "publisher", "destination", "complete", "files"),
        *("total_bytes", "network_bytes", "local_bytes", "resumed_bytes", "seconds"),
        *("transfer_seconds", "peers", "part_files", "web_seeds"),
    }
    assert fields["peers"] == [{"peer": world.peer, "bytes": fields["network_bytes"]}]
    assert fields["network_bytes"] >= fields["total_bytes"] == world.published["size"]
    assert (fields["resumed_bytes"], fields["local_bytes"]) == (0, 0)
    again = reader.run("get", world.link, "--to", copy, PYTHONPROFILEIMPORTTIME="1")
    assert_lean(again)
    assert "210 kB verified, 3 whole files" in again.out
    assert "210 kB were here already" in again.out
    removed = reader.json("rm", "tiny", "--yes", "--files").last
    assert removed["files_deleted"] == 3
    assert not copy.exists() or not list(copy.iterdir())


def test_get_without_to_goes_to_the_name_and_respects_what_is_there(
    world: World, reader: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_text("a file of the user's")
    refused = reader.run("get", world.link, code=6)
    assert (tmp_path / "tiny").read_text() == "a file of the user's"
    assert refused.err.count("\n") <= 4
    (tmp_path / "tiny").unlink()
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("the user's own")
    refused = reader.run("get", world.link, code=6)
    assert (tmp_path / "tiny" / "config.json").read_text() == "the user's own"
    reader.run("get", world.link, "--overwrite")
    assert same_files(world.model, tmp_path / "tiny")


def test_get_a_part(world: World, reader: Cli, tmp_path: Path) -> None:
    few = reader.json("get", world.link, "--to", tmp_path / "few", "--files", "*.json").last
    assert (few["files"], few["complete"]) == (1, False)
    assert [path.name for path in (tmp_path / "few").iterdir() if path.is_file()] == ["config.json"]
    one = reader.json("get", world.link, "--to", tmp_path / "one", "--tensors", "layer.1.*").last
    assert one["network_bytes"] < 100_000
    missing = reader.run("get", world.link, "--to", tmp_path / "x", "--files", "*.gguf", code=3)
    assert missing.err.splitlines()[-2] == "sbp2p: no file matches '*.gguf'"


def test_verify_a_part_and_repair_the_whole(world: World, reader: Cli, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    reader.run("get", world.link, "--to", copy, "--files", "*.json")
    assert "what is here of tiny version 1" in reader.run("verify", copy).out
    verified = reader.json("verify", copy).last
    assert (verified["ok"], verified["complete"], verified["damaged"]) == (True, False, [])

    reader.run("get", world.link, "--to", copy)
    assert "is good: " in reader.run("verify", copy).out
    damaged = bytearray((copy / "model.safetensors").read_bytes())
    damaged[100_000] ^= 1
    (copy / "model.safetensors").write_bytes(damaged)
    assert "--overwrite" in reader.run("verify", copy, code=5).err
    assert "--overwrite" in reader.run("get", world.link, "--to", copy, code=6).err
    done = reader.json("get", world.link, "--to", copy, "--overwrite").last
    assert 0 < done["network_bytes"] < done["total_bytes"] / 2
    assert reader.json("verify", copy).last["complete"]
    assert same_files(world.model, copy)


def test_a_new_publisher_is_not_trusted_by_name_without_a_word(
    world: World, reader: Cli, tmp_path: Path
) -> None:
    refused = reader.run("get", world.name_link, "--to", tmp_path / "copy", code=9)
    assert "--trust-new" in refused.err
    assert not (tmp_path / "copy").exists()
    reader.run("get", world.name_link, "--to", tmp_path / "copy", "--trust-new")
    assert same_files(world.model, tmp_path / "copy")
    reader.run("get", world.name_link, "--to", tmp_path / "other")


def test_get_and_go_on_seeding(world: World, reader: Cli, tmp_path: Path) -> None:
    with reader.start(
        "get", world.link, "--to", tmp_path / "a", "--seed", "--listen", LOOPBACK
    ) as a:
        peer = a.wait_for("listening")["peer"]
        link = a.wait_for("seeding")["link"]
        done = Cli(tmp_path / "third").json("get", link, "--to", tmp_path / "b").last
        assert [each["peer"] for each in done["peers"]] == [peer]
    assert same_files(world.model, tmp_path / "b")


def test_seed_publishes_its_paths_and_keeps_out_whom_it_should(
    world: World, reader: Cli, tmp_path: Path
) -> None:
    model = shutil.copytree(world.model, tmp_path / "model")
    peer = reader.json("id").last["peer"]
    cli = Cli(tmp_path / "home")
    words = ("--name", "mine", "--listen", LOOPBACK, "--deny", peer, "--no-bench")
    with cli.start("seed", model, *words) as seeder:
        address = seeder.wait_for("listening")["addresses"][0]
        assert seeder.wait_for("published")["name"] == "mine"
        link = seeder.wait_for("seeding")["link"]
        reader.run("get", link, "--to", tmp_path / "no", code=4)
        other = Cli(tmp_path / "other")
        other.run("get", link, "--to", tmp_path / "yes")
        assert "does not speak /perf/1.0.0" in other.run("bench", address, code=4).err
        assert seeder.wait_for("stats", bytes_sent=200_000)["connections"] >= 0
    assert same_files(world.model, tmp_path / "yes")


def test_bench(world: World, reader: Cli) -> None:
    result = reader.json("bench", world.address, "--size", 1, "--pings", 5).last
    assert (result["event"], result["peer"], result["pings"]) == ("bench", world.peer, 5)
    spread = list(result["rtt_ms"].values())
    assert list(result["rtt_ms"]) == ["min", "p50", "p90", "p99", "max"]
    assert spread == sorted(spread)
    assert spread[0] > 0
    assert result["upload_bytes"] == result["download_bytes"] == 2**20
    assert result["upload_bytes_per_s"] > 0
