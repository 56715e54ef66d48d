"""The DHT with js-libp2p's and py-libp2p's: each keeps the others' records and answers the others.

All take part in `/ipfs/kad/1.0.0`, which is the only network that py-libp2p knows, on loopback.
py-libp2p 0.8 writes IPNS names as text where everybody else has bytes, so values are tried with
js-libp2p alone. js-libp2p's kad-dht 16 takes only keys that are SHA-256 multihashes, so those are
what the tests announce; it refuses records of BLAKE3 blocks.
"""

from __future__ import annotations

import os
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import DhtConfig
from sbp2p.dht import Dht, open_dht
from sbp2p.ping import serve_ping
from sbp2p.swarm import open_swarm
from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_keys.multi import SHA2_256, multihash_encode
from sbp2p_protocol.ipns import ipns_key, make_ipns_record
from sbp2p_protocol.multiaddr import parse_address
from tests.interop.peer_process import PeerProcess, open_peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbp2p.swarm import Swarm

pytestmark = pytest.mark.interop

LOOPBACK = parse_address("/ip4/127.0.0.1/tcp/0")
CONFIG = DhtConfig(mode="server", quorum=1, public=False)

SECOND_NS = 1_000_000_000

both = pytest.mark.parametrize("kind", ["js", "py"])


class Ours:
    """A node of ours in the network of the others."""

    def __init__(self, swarm: Swarm, dht: Dht) -> None:
        self.swarm = swarm
        self.dht = dht
        self.peer = str(swarm.peer_id)
        self.address = swarm.addresses[0]

    async def providers(self, key: bytes) -> dict[str, list[str]]:
        """Look up who has a key, each with its addresses."""
        async with self.dht.find_providers(key) as search:
            return {
                str(each.peer_id): [address.without_peer().text for address in each.addresses]
                async for each in search
            }


@asynccontextmanager
async def open_ours(bootstrap: PeerProcess | Ours | None = None) -> AsyncIterator[Ours]:
    async with AsyncExitStack() as stack:
        swarm = await stack.enter_async_context(open_swarm(PrivateKey.generate()))
        serve_ping(swarm)  # js-libp2p pings before it takes a peer into its table
        await swarm.listen(LOOPBACK)
        dht = await stack.enter_async_context(open_dht(swarm, None, CONFIG, name="/ipfs"))
        ours = Ours(swarm, dht)
        if bootstrap is not None:
            assert await dht.bootstrap([bootstrap.address]) == 1
            await dht.wait_settled()
        yield ours


@pytest.fixture
async def deadline() -> AsyncIterator[None]:
    with trio.fail_after(90):
        yield


async def checkpoint_after_a_moment() -> None:
    """A record is told without an answer, so there is nothing to await."""
    await trio.sleep(0.05)


def some_key() -> bytes:
    return multihash_encode(SHA2_256, os.urandom(32))


@both
@pytest.mark.usefixtures("deadline")
async def test_they_keep_our_provider_records(kind: str) -> None:
    key = some_key()
    async with open_peer(kind, "kad_peer") as peer, open_ours(peer) as ours:
        assert await ours.dht.provide(key) == 1
        # nobody answers an ADD_PROVIDER: another request over the same server comes after it
        async with open_ours(peer) as other:
            found = await other.providers(key)
        assert found == {ours.peer: [ours.address.without_peer().text]}
        assert (await peer.do("kept", key=key.hex()))["peers"] == [ours.peer]


@both
@pytest.mark.usefixtures("deadline")
async def test_we_keep_theirs_and_answer_them(kind: str) -> None:
    theirs, ours_key = some_key(), some_key()
    async with open_ours() as ours, open_peer(kind, "kad_peer") as peer:
        await peer.do("connect", address=ours.address.text)
        await peer.do("wait", peer=ours.peer)
        await peer.do("provide", key=theirs.hex())
        async with open_ours(ours) as other:
            while not (found := await other.providers(theirs)):
                await checkpoint_after_a_moment()
            assert set(found) == {peer.peer}
            assert peer.address.without_peer().text in found[peer.peer]
            assert await other.dht.provide(ours_key) >= 1
            answer = await peer.do("providers", key=ours_key.hex())
            assert other.peer in [each["peer"] for each in answer["providers"]]


@both
@pytest.mark.usefixtures("deadline")
async def test_a_lookup_crosses_them(kind: str) -> None:
    """Ours knows only the foreign node, which knows only another of ours."""
    async with open_ours() as far, open_peer(kind, "kad_peer") as peer:
        await peer.do("connect", address=far.address.text)
        await peer.do("wait", peer=far.peer)
        async with open_ours(peer) as near:
            found = await near.dht.find_peer(far.swarm.peer_id)
            assert far.address.without_peer() in [each.without_peer() for each in found]
            answer = await peer.do("find", peer=near.peer)
            assert near.address.without_peer().text in [
                text.partition("/p2p/")[0] for text in answer["addresses"]
            ]


@pytest.mark.usefixtures("deadline")
async def test_a_lookup_crosses_all_three() -> None:
    """js knows ours, py knows js, and a second one of ours knows py: it finds all of them."""
    key = some_key()
    async with (
        open_ours() as far,
        open_peer("js", "kad_peer") as js,
        open_peer("py", "kad_peer") as py,
    ):
        await js.do("connect", address=far.address.text)
        await js.do("wait", peer=far.peer)
        await py.do("connect", address=js.address.text)
        await py.do("wait", peer=js.peer)
        async with open_ours(py) as near:
            assert await near.dht.find_peer(far.swarm.peer_id)
            assert await near.dht.find_peer(PeerId.parse(js.peer))
            assert await near.dht.provide(key) >= 2
            assert near.peer in await far.providers(key)


@pytest.mark.usefixtures("deadline")
async def test_they_keep_our_values_and_get_them_from_us() -> None:
    key = PrivateKey.generate()
    name = ipns_key(key.peer_id)
    end = time.time_ns() + 3600 * SECOND_NS
    record = make_ipns_record(
        key, b"/ipfs/bafkqaaa", sequence=1, valid_until_ns=end, ttl_ns=60 * SECOND_NS
    )
    async with open_peer("js", "kad_peer") as peer, open_ours(peer) as ours:
        assert await ours.dht.put_value(name, record) == 1
        async with open_ours(peer) as other:
            found = await other.dht.get_value(name, quorum=1)
            assert found is not None
            assert found.value == record
        answer = await peer.do("get", key=name.hex())
        assert bytes.fromhex(answer["value"]) == record
