"""The node as a user of the library holds it: real swarms on loopback, small checkpoints."""

from __future__ import annotations

import random
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest
import trio
from safetensors.numpy import save_file

import sbp2p
from sbp2p.config import ExchangeConfig
from sbp2p.negotiate import ProtocolUnsupportedError
from sbp2p.node.threads import StoppedError, run_stoppable
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.link import NameLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

CID = "bafyr4iaetjzyy2cdlrbbwjckvsa43mtyokmhrzgijfhwzmeqaduvlzav3a"
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
WEIGHTS = random.Random(7).randbytes(3_000_000)  # noqa: S311
IMPATIENT = sbp2p.NodeConfig(exchange=ExchangeConfig(patience_s=0.2))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(WEIGHTS)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "empty").write_bytes(b"")
    return folder


@asynccontextmanager
async def open_pair(tmp_path: Path) -> AsyncIterator[tuple[sbp2p.Node, sbp2p.Node]]:
    """A publisher that listens, and somebody else."""
    async with (
        sbp2p.Node(home=tmp_path / "alice", listen=LOOPBACK) as alice,
        sbp2p.Node(home=tmp_path / "bob", config=IMPATIENT) as bob,
    ):
        yield alice, bob


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


async def test_a_glob_makes_just_the_files_that_it_matches(tmp_path: Path, model: Path) -> None:
    (model / "copy.bin").write_bytes(WEIGHTS)
    (model / "sub" / "__init__.py").write_bytes(b"")
    (model / "sub" / "code.py").write_text("x = 1")
    async with open_pair(tmp_path) as (alice, bob):
        link = (await alice.publish(model, name="m")).link(alice.addresses)
        for glob, made in (
            ("*.py", {"sub/__init__.py", "sub/code.py"}),
            ("weights.bin", {"weights.bin"}),
            ("sub/empty", {"sub/empty"}),
            ("*", set(content(model))),
        ):
            folder = tmp_path / glob.replace("/", "_").replace("*", "all")
            result = await bob.fetch(link, to=folder, files=[glob])
            assert set(content(folder)) == made
            assert result.files == len(made)


async def test_what_is_published_can_be_fetched_and_is_the_same(
    tmp_path: Path, model: Path
) -> None:
    seen: list[sbp2p.Progress] = []
    async with open_pair(tmp_path) as (alice, bob):
        version = await alice.publish(model, name="m", meta={"step": 7}, progress=seen.append)
        assert (version.name, version.version, version.publisher) == ("m", 1, alice.publisher)
        assert (version.files, version.size) == (3, len(WEIGHTS) + 2)
        link = version.link(alice.addresses)
        result = await bob.fetch(link, to=tmp_path / "copy", progress=seen.append)
    assert content(tmp_path / "copy") == content(model)
    assert result.version.cid == version.cid
    assert not result.version.published_here
    assert result.network_bytes >= result.total_bytes > 0
    assert [peer for peer, _ in result.peers] == [alice.peer_id]
    assert (result.local_bytes, result.resumed_bytes) == (0, 0)
    assert seen[-1].done_bytes == seen[-1].total_bytes == result.total_bytes


async def test_publishing_the_same_again_gives_the_same_version(
    tmp_path: Path, model: Path
) -> None:
    async with sbp2p.Node(home=tmp_path / "home") as node:
        first = await node.publish_in_detail(model, name="m")
        again = await node.publish_in_detail(model, name="m")
        assert again.unchanged
        assert again.version == first.version
        (model / "config.json").write_text('{"changed": true}')
        second = await node.publish(model, name="m")
        assert second.version == 2
        assert node.find("m").cid == second.cid
        assert node.find("m@1").cid == first.version.cid
        found = await node.describe(second.link())
        assert found.manifest.parents == (first.version.cid,)
        (model / "config.json").write_text('{"changed": 2}')
        with pytest.raises(sbp2p.ConfigError, match="only grow"):
            await node.publish(model, name="m", version=2)


async def test_a_name_link_gets_the_newest_version(tmp_path: Path, model: Path) -> None:
    async with open_pair(tmp_path) as (alice, bob):
        first = await alice.publish(model, name="org/m")
        (model / "config.json").write_text('{"second": 1}')
        second = await alice.publish(model, name="org/m")
        newest = str(NameLink(alice.publisher, "org/m", None, tuple(alice.addresses)))
        fetched = await bob.fetch(newest, to=tmp_path / "newest", trust=sbp2p.accept_new)
        assert fetched.version.cid == second.cid
        assert first.cid != second.cid


async def test_a_new_publisher_is_asked_about_only_when_the_link_does_not_name_the_content(
    tmp_path: Path, model: Path
) -> None:
    asked: list[str] = []

    async def ask(manifest: object, reason: str) -> bool:
        asked.append(reason)
        return False

    async with open_pair(tmp_path) as (alice, bob):
        version = await alice.publish(model, name="m")
        by_name = str(NameLink(alice.publisher, "m", None, tuple(alice.addresses)))
        with pytest.raises(sbp2p.TrustError, match="is new here"):
            await bob.fetch(by_name, to=tmp_path / "copy")
        with pytest.raises(sbp2p.TrustError, match="is new here"):
            await bob.fetch(by_name, to=tmp_path / "copy", trust=ask)
        assert len(asked) == 1
        assert not (tmp_path / "copy").exists()
        await bob.fetch(version.link(alice.addresses), to=tmp_path / "copy", trust=ask)
        await bob.fetch(by_name, to=tmp_path / "copy", trust=ask)  # pinned by now
        assert len(asked) == 1


async def test_a_name_that_is_pinned_to_one_publisher_is_refused_to_another(
    tmp_path: Path, model: Path
) -> None:
    async with (
        open_pair(tmp_path) as (alice, bob),
        sbp2p.Node(home=tmp_path / "mallory", listen=LOOPBACK) as mallory,
    ):
        good = await alice.publish(model, name="m")
        await bob.fetch(good.link(alice.addresses), to=tmp_path / "copy")
        (model / "config.json").write_text("bad")
        bad = await mallory.publish(model, name="m")
        with pytest.raises(sbp2p.TrustError, match="refused"):
            await bob.fetch(bad.link(mallory.addresses), to=tmp_path / "bad")
        assert not (tmp_path / "bad").exists()


async def test_a_second_node_on_one_home_works_under_another_peer_id(
    tmp_path: Path, model: Path
) -> None:
    home = tmp_path / "home"
    async with sbp2p.Node(home=home, listen=LOOPBACK) as seeder:
        async with sbp2p.Node(home=home) as second:
            assert second.ephemeral
            assert not seeder.ephemeral
            assert second.peer_id != seeder.peer_id
            assert second.publisher == seeder.publisher
            version = await second.publish(model, name="m")
        # the running seeder serves what the other process published
        async with sbp2p.Node(home=tmp_path / "bob") as bob:
            await bob.fetch(version.link(seeder.addresses), to=tmp_path / "copy")
    assert content(tmp_path / "copy") == content(model)
    async with sbp2p.Node(home=home) as again:
        assert not again.ephemeral


async def test_a_part_of_a_version_costs_a_part(tmp_path: Path, model: Path) -> None:
    async with open_pair(tmp_path) as (alice, bob):
        version = await alice.publish(model, name="m")
        link = version.link(alice.addresses)
        part = await bob.fetch(link, to=tmp_path / "copy", files=["*.json"])
        assert part.total_bytes == 2
        assert content(tmp_path / "copy").keys() >= {"config.json"}
        assert not part.version.complete
        with pytest.raises(sbp2p.NotFoundError, match="no file matches"):
            await bob.fetch(link, to=tmp_path / "copy", files=["*.gguf"])
        with pytest.raises(sbp2p.NotFoundError, match="no tensor"):
            await bob.fetch(link, to=tmp_path / "copy", tensors=["x"])
        whole = await bob.fetch(link, to=tmp_path / "copy")
        assert whole.version.complete
        assert whole.resumed_bytes + whole.local_bytes == 2
    assert content(tmp_path / "copy") == content(model)


async def test_what_is_here_is_not_fetched_again(tmp_path: Path, model: Path) -> None:
    async with sbp2p.Node(home=tmp_path / "home") as node:
        version = await node.publish(model, name="m")
        result = await node.fetch(version.link(), to=tmp_path / "copy")
        assert result.network_bytes == 0
        assert result.local_bytes == result.total_bytes
    assert content(tmp_path / "copy") == content(model)


async def test_damage_is_found_and_named(tmp_path: Path, model: Path) -> None:
    async with open_pair(tmp_path) as (alice, bob):
        version = await alice.publish(model, name="m")
        assert await alice.verify(version) == []
        with (model / "weights.bin").open("r+b") as file:
            file.seek(1_500_000)
            file.write(b"damage")
        damage = await alice.verify(version)
        assert [each.path.name for each in damage] == ["weights.bin"]
        with pytest.raises((sbp2p.NotFoundError, sbp2p.PeerUnreachableError)):
            await bob.fetch(version.link(alice.addresses), to=tmp_path / "copy")
        assert "weights.bin" not in content(tmp_path / "copy")


async def test_a_removed_version_is_gone_and_the_publishers_files_are_not(
    tmp_path: Path, model: Path
) -> None:
    async with open_pair(tmp_path) as (alice, bob):
        version = await alice.publish(model, name="m")
        fetched = await bob.fetch(version.link(alice.addresses), to=tmp_path / "copy")
        await bob.remove(fetched.version, delete_files=True)
        assert content(tmp_path / "copy") == {}
        await alice.remove(version, delete_files=True)
        assert content(model)["weights.bin"] == WEIGHTS
        with pytest.raises(sbp2p.NotFoundError):
            alice.find("m")


async def test_references_that_mean_nothing_or_too_much(tmp_path: Path, model: Path) -> None:
    async with sbp2p.Node(home=tmp_path / "home", identity=PrivateKey.generate()) as node:
        one = await node.publish(model, name="one")
        await node.publish(model / "config.json", name="two")
        assert node.find(str(one.cid)) == one
        assert node.find(str(one.cid)[:20]) == one
        with pytest.raises(sbp2p.ConfigError, match="means 2 versions"):
            node.find("bafy")  # what every CID begins with
        for reference in ("three", "no-cid"):
            with pytest.raises(sbp2p.NotFoundError, match=f"'{reference}'"):
                node.find(reference)


async def test_a_version_in_several_folders_is_one(tmp_path: Path, model: Path) -> None:
    async with open_pair(tmp_path) as (alice, bob):
        theirs = await alice.publish(model, name="m")
        for copy in ("one", "two"):
            await bob.fetch(theirs.link(alice.addresses), to=tmp_path / copy)
        assert bob.find("m").cid == theirs.cid
        own = await bob.publish(model / "config.json", name="m")
        with pytest.raises(sbp2p.ConfigError, match="'m' means 2 versions") as caught:
            bob.find("m")
        assert {str(theirs.cid), str(own.cid)} <= set(re.split("[, ]+", caught.value.hint))
        assert "..." not in caught.value.hint


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("https://example.org", "not a link"),
        ("sbp2p:nonsense", "CID|cid|multibase|decode"),
        ("sbp2p://nobody/m", "not a peer id"),
    ],
)
async def test_a_link_that_is_none_is_refused_in_words(
    tmp_path: Path, text: str, complaint: str
) -> None:
    async with sbp2p.Node(home=tmp_path / "home") as node:
        with pytest.raises(sbp2p.ConfigError, match=complaint) as caught:
            await node.fetch(text, to=tmp_path / "copy")
        assert "sbp2p:" in caught.value.hint


async def test_ping_and_bandwidth_by_address(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as (alice, bob):
        address = alice.addresses[0].text
        assert len(await bob.ping(address, 2, 0)) == 2
        assert await bob.connect(address) == alice.peer_id
        result = await bob.measure_bandwidth(
            alice.peer_id, upload_bytes=100_000, download_bytes=200_000
        )
        assert (result.upload_bytes, result.download_bytes) == (100_000, 200_000)


async def test_a_node_that_is_told_so_is_not_measured(tmp_path: Path) -> None:
    quiet = sbp2p.NodeConfig(serve_perf=False)
    async with (
        sbp2p.Node(home=tmp_path / "alice", listen=LOOPBACK, config=quiet) as alice,
        sbp2p.Node(home=tmp_path / "bob") as bob,
    ):
        peer = await bob.connect(alice.addresses[0].text)
        await bob.ping(peer)
        with pytest.raises(ProtocolUnsupportedError, match="perf"):
            await bob.measure_bandwidth(peer, upload_bytes=1, download_bytes=1)


async def test_stoppable_work_is_waited_for_when_its_task_is_cancelled() -> None:
    started = trio.Event()
    ended: list[bool] = []

    def work(should_stop: Callable[[], bool]) -> None:
        trio.from_thread.run_sync(started.set)
        while not should_stop():
            pass
        ended.append(True)
        raise StoppedError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_stoppable, work)
        await started.wait()
        nursery.cancel_scope.cancel()
    assert ended == [True]


async def test_an_error_in_stoppable_work_comes_out_alone() -> None:
    def work(should_stop: Callable[[], bool]) -> None:
        raise ValueError("from the thread")

    with pytest.raises(ValueError, match="from the thread"):
        await run_stoppable(work)


async def test_a_part_of_a_file_is_named_and_can_be_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "tensors"
    folder.mkdir()
    values = np.arange(400_000, dtype=np.float32)
    save_file({"a": values, "b": values + 1}, folder / "model.safetensors")
    async with open_pair(tmp_path) as (alice, bob):
        version = await alice.publish(folder, name="t")
        link = version.link(alice.addresses)
        part = await bob.fetch(link, to=tmp_path / "copy", tensors=["b"])
        ((name, where),) = part.part_files
        assert name == "model.safetensors"
        assert not (tmp_path / "copy" / name).exists()
        loaded = sbp2p.load_tensors([where], names=["b"], framework="numpy")
        assert np.array_equal(loaded["b"], values + 1)
        whole = await bob.fetch(link, to=tmp_path / "copy")
        assert whole.part_files == ()
    assert content(tmp_path / "copy") == content(folder)


async def test_a_version_is_not_found_by_next_to_nothing(tmp_path: Path, model: Path) -> None:
    async with sbp2p.Node(home=tmp_path / "home") as node:
        version = await node.publish(model, name="at@1")
        cid = str(version.cid)
        for reference in (cid, cid[:11], "at@1", "at@1@1"):
            assert node.find(reference).cid == version.cid
        for reference in ("", "b", cid[:10], cid + "a", "at", "at@2", "@1"):
            with pytest.raises(sbp2p.NotFoundError):
                node.find(reference)


# -- what no call can mean ------------------------------------------------------------------------


async def test_a_node_is_used_while_it_is_open(tmp_path: Path, model: Path) -> None:
    node = sbp2p.Node(home=tmp_path / "home")
    uses: list[Callable[[], object]] = [
        lambda: node.store,
        lambda: node.swarm,
        lambda: node.exchange,
        node.versions,
    ]
    who: list[Callable[[], object]] = [
        lambda: node.peer_id,
        lambda: node.publisher,
        lambda: node.addresses,
        node.statistics,
    ]

    async def refuses(uses: list[Callable[[], object]]) -> None:
        for use in uses:
            with pytest.raises(RuntimeError, match=r"async with sbp2p.Node"):
                use()
        with pytest.raises(RuntimeError, match=r"async with sbp2p.Node"):
            await node.publish(model)
        with pytest.raises(RuntimeError, match=r"async with sbp2p.Node"):
            await node.fetch(f"sbp2p:{CID}")

    await refuses([*uses, *who])
    async with node:
        before = [use() for use in [*uses, *who]][len(uses) :]
        with pytest.raises(RuntimeError, match="open already"):
            async with node:
                pass
        assert node.versions() == []
    await refuses(uses)
    assert [use() for use in who][:2] == before[:2]
    async with node:
        assert not node.ephemeral


async def test_a_node_that_could_not_be_opened_can_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("in the way")
    node = sbp2p.Node(home=tmp_path / "home")
    for _ in range(2):
        with pytest.raises(sbp2p.StoreError):
            await node.__aenter__()
    (tmp_path / "home").unlink()
    async with node:
        pass


def test_asyncio_is_told_to_be_the_wrong_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with sbp2p.Node(home=tmp_path / "home"):
            pass

    with pytest.raises(RuntimeError, match=r"trio.run\(main\)"):
        main().send(None)


async def test_one_text_is_one_glob_and_one_address(tmp_path: Path, model: Path) -> None:
    async with (
        sbp2p.Node(home=tmp_path / "alice", listen=LOOPBACK[0]) as alice,
        sbp2p.Node(home=tmp_path / "bob") as bob,
    ):
        version = await alice.publish(model, name="m")
        address = alice.addresses[0].text
        result = await bob.fetch(
            version.link(), to=tmp_path / "copy", files="*.json", peers=address
        )
        assert result.files == 1
        assert (await bob.describe(version.link(), peers=address)).manifest.name == "m"


async def test_the_name_of_a_model_does_not_choose_a_folder_with_other_files(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "bin").mkdir(parents=True)
    (here / "bin" / "tool").write_text("the user's")
    (here / "empty").mkdir()
    monkeypatch.chdir(here)
    async with open_pair(tmp_path) as (alice, bob):
        links = {
            name: (await alice.publish(model, name=name)).link(alice.addresses)
            for name in (".ssh", "org/.config", "bin", "org/bin", "empty", "new")
        }
        for name in (".ssh", "org/.config"):
            with pytest.raises(sbp2p.ConfigError, match="hidden"):
                await bob.fetch(links[name])
        for name in ("bin", "org/bin"):
            with pytest.raises(sbp2p.StoreError, match="holds other files"):
                await bob.fetch(links[name])
        assert set(content(here)) == {"bin/tool"}
        for name in ("empty", "new"):
            for _ in range(2):  # the second time it is known
                await bob.fetch(links[name])
            assert content(here / name) == content(model)
        await bob.fetch(links["bin"], to="bin")
        await bob.fetch(links[".ssh"], to=".ssh")
        assert set(content(here / "bin")) == {"tool", *content(model)}


async def test_an_empty_text_is_not_the_working_folder(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(sbp2p.ConfigError, match="empty text"):
        sbp2p.Node(home="")
    async with open_pair(tmp_path) as (alice, bob):
        link = (await alice.publish(model, name="m")).link(alice.addresses)
        with pytest.raises(sbp2p.ConfigError, match="empty text"):
            await bob.fetch(link, to="")
        with pytest.raises(sbp2p.ConfigError, match="empty text"):
            await alice.publish("")
        with pytest.raises(sbp2p.ConfigError, match="cannot name a model"):
            await alice.publish(model, name="")
        with pytest.raises(TypeError, match="a link is a text"):
            await bob.fetch(link.encode(), to="x")  # type: ignore[arg-type]
    assert list((tmp_path / "here").iterdir()) == []


async def test_versions_published_at_once_have_numbers_of_their_own(
    tmp_path: Path, model: Path
) -> None:
    folders = [tmp_path / f"model-{n}" for n in range(4)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "file").write_text(str(number))
    async with (
        sbp2p.Node(home=tmp_path / "home") as one,
        sbp2p.Node(home=tmp_path / "home") as two,  # as another process would
        trio.open_nursery() as nursery,
    ):
        for node, folder in zip((one, two, one, two), folders, strict=True):
            nursery.start_soon(lambda node, folder: node.publish(folder, name="m"), node, folder)
    async with sbp2p.Node(home=tmp_path / "home") as node:
        assert sorted(version.version for version in node.versions()) == [1, 2, 3, 4]
