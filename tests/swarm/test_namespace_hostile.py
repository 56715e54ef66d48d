"""Hostile members of a namespace: what each can do, and that the others name it and go on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.config import NamespaceConfig, NodeConfig
from sbp2p.plugins.plugin import Snapshot
from sbp2p.testing import VirtualNetwork, run_virtual
from sbp2p_protocol.cid import DAG_PB, Cid
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.manifest import Manifest, sign_manifest
from sbp2p_protocol.namespace_messages import (
    NAMESPACE_VERSION,
    PROTOCOL_ID,
    WINDOW_MIN,
    Hello,
    Stance,
    UpdateMessage,
    encode_message,
    update_meta,
)
from tests.swarm.namespace_lab import ALONE, floats, model, open_swarm, step, values_of

if TYPE_CHECKING:
    from sbp2p.stream import Stream
    from sbp2p.testing import VirtualNode

EXTRA = RawTensor("extra", "F32", (1,), memoryview(bytes(4)))
WIDE = RawTensor("w", "F64", (1,), memoryview(bytes(8)))
UNFIT = {
    "another name": (Snapshot({"v": floats([1.0], "v")}), "did not come"),
    "one more": (Snapshot({"w": floats([1.0]), "extra": EXTRA}), "does not have"),
    "another shape": (model(1.0, 2.0), "shape"),
    "another dtype": (Snapshot({"w": WIDE}), "F64"),
    "far too large": (model(*([0.0] * 500_000)), "bytes: over"),
    "NaN": (model(math.nan), "NaN"),
    "infinity": (model(math.inf), "infinit"),
}


def test_models_that_cannot_be_merged_are_named_and_left_out() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 2 + len(UNFIT)) as namespaces:
            reasons = {}
            for namespace, (unfit, reason) in zip(namespaces[2:], UNFIT.values(), strict=True):
                await namespace.publish(unfit)
                reasons[namespace.peer_id] = reason
            models = [model(0.0), model(4.0)]
            for result in await step(namespaces[:2], models):
                assert len(result.merged) == 2
                assert result.record is not None
                assert {each.peer_id for each in result.rejected} == reasons.keys()
                for rejected in result.rejected:
                    assert reasons[rejected.peer_id].lower() in rejected.reason.lower()
            assert values_of(models[0]) == values_of(models[1])

    run_virtual(main)


def test_who_does_it_again_and_again_is_banned() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 3) as namespaces:
            models = [model(0.0), model(4.0), model(1.0, 2.0)]
            for _ in range(3):
                await step(namespaces, models, deadline_s=5.0)
            hostile = namespaces[2].peer_id
            for namespace in namespaces[:2]:
                assert hostile not in {each.peer_id for each in namespace.members}
            (result, _, _) = await step(namespaces, models, deadline_s=5.0)
            assert (len(result.merged), result.rejected, result.missing) == (2, (), ())

    run_virtual(main)


def update(node: VirtualNode, root: Cid, number: int, *, version: int = 1, **meta: object) -> bytes:
    """An update as a hostile node may sign it."""
    key = node.swarm.identity
    said = update_meta(key.peer_id, round=number, samples=1, codec="lossless") | meta
    manifest = Manifest(
        name="digits",
        version=version,
        root=root,
        publisher=key.peer_id,
        created=1,
        meta=said,  # type: ignore[arg-type]
    )
    return sign_manifest(manifest, key).to_bytes()


def root_of(node: VirtualNode, cid: Cid) -> Cid:
    found = node.store.version(cid)
    assert found is not None
    return found.manifest.root


async def greet(node: VirtualNode, at: VirtualNode, said: bytes = b"") -> Stream:
    """Open a namespace's stream by hand, and say HELLO."""
    await node.connect(at.address)
    stream = await node.swarm.open_stream(at.peer_id, [PROTOCOL_ID])
    hello = Hello(NAMESPACE_VERSION, "digits", (), WINDOW_MIN, Stance(True, True, 0), said)
    await stream.send_all(encode_length_prefixed(encode_message(hello)))
    return stream


async def tell(stream: Stream, *documents: bytes) -> None:
    for document in documents:
        await stream.send_all(encode_length_prefixed(encode_message(UpdateMessage(document))))


def test_updates_that_contradict_are_replayed_or_forged_are_named() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 2) as namespaces:
            hostile = await network.add_node("hostile", config=ALONE)
            models = [model(0.0), model(4.0)]
            published = await namespaces[0].publish(models[0])
            await namespaces[1].publish(models[1])
            root = root_of(network.nodes["n0"], published.version.cid)
            stream = await greet(hostile, network.nodes["n0"])
            await namespaces[0].wait_for_peers([hostile.peer_id])
            first = update(hostile, root, 2)
            stolen = namespaces[1]
            await tell(
                stream,
                first,
                first,  # the same again is no news
                update(hostile, root, 2, version=2),
                update(hostile, root, 1),
                update(hostile, root, 3, peer=stolen.peer_id.to_bytes()),
            )
            await trio.sleep(1)
            result = await namespaces[0].merge(models[0], deadline_s=5.0)
            assert [each.peer_id for each in result.merged] == [each.peer_id for each in namespaces]
            assert {each.peer_id for each in result.rejected} == {hostile.peer_id}
            reasons = " ".join(each.reason for each in result.rejected)
            for reason in ("two", "older round", "another peer"):
                assert reason in reasons
            assert hostile.peer_id not in network.nodes["n0"].swarm.peers()  # three times: a ban

    run_virtual(main)


def test_an_update_whose_blocks_nobody_has_is_missing_at_the_deadline() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 2) as namespaces:
            hostile = await network.add_node("hostile", config=ALONE)
            models = [model(0.0), model(4.0)]
            await namespaces[0].publish(models[0])
            await namespaces[1].publish(models[1])
            absent = Cid(1, DAG_PB, 0x1E, bytes(32))
            await greet(hostile, network.nodes["n0"], update(hostile, absent, 1))
            await namespaces[0].wait_for_peers([hostile.peer_id])
            result = await namespaces[0].merge(models[0], deadline_s=8.0)
            assert result.seconds <= 8.8
            assert len(result.merged) == 2
            assert result.missing == (hostile.peer_id,)
            assert values_of(models[0]) == [2.0]

    run_virtual(main)


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 20,
        encode_length_prefixed(b"\xa0"),
        encode_length_prefixed(encode_message(Stance(True, True, 1))),
        encode_length_prefixed(b"\x82\x08\x40") * 20_000,
    ],
)
def test_garbage_ends_the_stream_and_nothing_else(said: bytes) -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 2) as namespaces:
            hostile = await network.add_node("hostile", config=ALONE)
            at = network.nodes["n0"]
            stream = await greet(hostile, at)
            await namespaces[0].wait_for_peers([hostile.peer_id])
            with trio.move_on_after(5):
                try:
                    await stream.send_all(encode_length_prefixed(encode_message(HELLO)) + said)
                    while await stream.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass
            await trio.sleep(5)
            assert hostile.peer_id not in {each.peer_id for each in namespaces[0].members}
            results = await step(namespaces, [model(0.0), model(4.0)])
            assert all(len(each.merged) == 2 for each in results)

    run_virtual(main)


HELLO = Hello(NAMESPACE_VERSION, "digits", (), WINDOW_MIN, Stance(True, True, 0), b"")


def test_a_silent_stream_and_too_many_members_are_bounded() -> None:
    async def main(network: VirtualNetwork) -> None:
        few = NodeConfig(
            dht=ALONE.dht, discovery=ALONE.discovery, namespace=NamespaceConfig(members_max=1)
        )
        here = await network.add_node("here", config=few)
        one = await network.add_node("one", config=ALONE)
        other = await network.add_node("other", config=ALONE)
        async with here.namespace("digits") as namespace:
            await one.connect(here.address)
            silent = await one.swarm.open_stream(here.peer_id, [PROTOCOL_ID])
            with trio.fail_after(15), pytest.raises(trio.BrokenResourceError):
                await silent.receive_some()
            await greet(one, here)
            await namespace.wait_for_peers(1)
            refused = await greet(other, here)
            assert b"members already" in bytes(await refused.receive_some())
            assert len(namespace.members) == 1

    run_virtual(main)


def test_one_far_ahead_leads_nobody_on() -> None:
    async def main(network: VirtualNetwork) -> None:
        async with open_swarm(network, 3) as namespaces:
            hostile = await network.add_node("hostile", config=ALONE)
            models = [model(0.0), model(1.0), model(2.0)]
            (result, _, _) = await step(namespaces, models)
            assert result.record is not None
            for name in ("n0", "n1", "n2"):
                root = root_of(network.nodes["n0"], result.record.cid)
                await greet(hostile, network.nodes[name], update(hostile, root, 2**40))
            for namespace in namespaces:
                await namespace.wait_for_peers([hostile.peer_id])
            results = await step(namespaces, models, deadline_s=5.0)
            assert {each.round for each in results} == {2}

    run_virtual(main)
