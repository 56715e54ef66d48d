"""Private swarms: who gets in, who does not, and what strangers learn."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sbp2p.config import NodeConfig
from sbp2p.connection import EARLY_STREAMS_MAX, UpgradeError
from sbp2p.errors import PeerUnreachableError, Sbp2pError
from sbp2p.membership import HANDSHAKE_TIMEOUT_S, Membership, prologue_of
from sbp2p.ping import serve_ping
from sbp2p.roles import Role
from sbp2p.swarm import open_swarm
from sbp2p.transport import MemoryNetwork
from sbp2p.upgrade import open_connection
from sbp2p_keys.membership import Capability
from sbp2p_protocol.identify import IDENTIFY_PROTOCOL
from sbp2p_protocol.membership import MEMBERSHIP_PROTOCOL, REVOCATIONS_PROTOCOL
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.ping import PING_PROTOCOL
from tests.runtime.membership_samples import NOW, OWNER, delegate, invite, key, revoking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PrivateKey
    from sbp2p_keys.swarm_file import SwarmFile
    from sbp2p_protocol.multiaddr import Address

A, B, C = key(1), key(2), key(3)


@dataclass
class FileOnDisk:
    """A swarm file that another process may change."""

    swarm: SwarmFile | None = None
    written: list[bytes] = field(default_factory=list)

    async def read(self) -> SwarmFile | None:
        await trio.lowlevel.checkpoint()
        found, self.swarm = self.swarm, None
        return found

    async def write_revocations(self, document: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.written.append(document)


@dataclass
class Node:
    swarm: Swarm
    membership: Membership | None
    file: FileOnDisk
    addresses: list[Address]


class Town:
    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.stack = AsyncExitStack()
        self.began = trio.current_time()
        self._count = 0

    def now(self) -> float:
        return NOW + trio.current_time() - self.began

    async def node(
        self,
        identity: PrivateKey,
        file: SwarmFile | None,
        *,
        lent: bytes = b"",
        secret: bool = True,
    ) -> Node:
        """Start a node of a swarm; None makes a stranger."""
        self._count += 1
        config, membership, disk = NodeConfig(), None, FileOnDisk()
        if file is not None:
            membership = Membership(file, delegate=lent, wall_clock=self.now, keeper=disk)
            if secret:
                prologue = prologue_of(file)
                config = replace(config, connection=replace(config.connection, prologue=prologue))
        swarm = await self.stack.enter_async_context(
            open_swarm(identity, config, membership=membership, transports=[self.network])
        )
        serve_ping(swarm)
        addresses = await swarm.listen(parse_address(f"/memory/{self._count}"))
        return Node(swarm, membership, disk, addresses)


@asynccontextmanager
async def open_town() -> AsyncIterator[Town]:
    town = Town()
    with trio.fail_after(1000):
        async with town.stack:
            yield town


async def meet(one: Node, other: Node) -> None:
    await one.swarm.connect(other.addresses)
    stream = await one.swarm.open_stream(other.swarm.peer_id, [PING_PROTOCOL])
    await stream.aclose()


async def test_members_meet(autojump_clock: MockClock) -> None:
    async with open_town() as town:
        a, b = await town.node(A, invite(A)), await town.node(B, invite(B, serial=2))
        await meet(a, b)
        await meet(b, a)
        await trio.sleep(1)
        for node, peer in ((a, B), (b, A)):
            told = node.swarm.identified(peer.peer_id)
            assert told is not None
            assert PING_PROTOCOL in told.protocols
            assert MEMBERSHIP_PROTOCOL not in told.protocols
        await trio.sleep(60)
        assert a.swarm.peers() == [B.peer_id]


@pytest.mark.parametrize(
    "file",
    [
        invite(A, expires=NOW),
        invite(A, begins=NOW + 1000),
        invite(A, owner=C),
        invite(C),
        None,
    ],
    ids=["expired", "not yet", "wrong owner", "replayed", "stranger"],
)
@pytest.mark.parametrize("knows_secret", [True, False])
@pytest.mark.parametrize("dials", [True, False])
async def test_who_is_no_member_stays_out(
    autojump_clock: MockClock, file: SwarmFile | None, knows_secret: bool, dials: bool
) -> None:
    """Whoever of the two dials, both ends find out."""
    async with open_town() as town:
        bad = await town.node(A, file, secret=knows_secret)
        good = await town.node(B, invite(B))
        one, other = (bad, good) if dials else (good, bad)
        with pytest.raises(PeerUnreachableError):
            await meet(one, other)
        await trio.sleep(1)
        assert not good.swarm.peers()
        assert good.swarm.identified(A.peer_id) is None
        assert bad.swarm.identified(B.peer_id) is None
        assert bad.swarm.statistics().connections == ()


async def test_a_stranger_learns_that_somebody_listens(autojump_clock: MockClock) -> None:
    """Without the secret, not even the peer id of who it is."""
    async with open_town() as town:
        node = await town.node(B, invite(B))
        raw = await town.network.connect(node.addresses[0].without_peer())
        with pytest.RaisesGroup(pytest.RaisesExc(UpgradeError, match="does not decrypt")):
            async with open_connection(raw, C, NodeConfig(), initiator=True):
                pass


async def test_who_was_a_member_learns_no_more_than_the_peer_id(
    autojump_clock: MockClock,
) -> None:
    """It knows the secret; each of its streams is refused or ignored."""
    async with open_town() as town:
        file = invite(B)
        node = await town.node(B, file)
        config = replace(
            NodeConfig(), connection=replace(NodeConfig().connection, prologue=prologue_of(file))
        )
        raw = await town.network.connect(node.addresses[0].without_peer())
        async with open_connection(raw, C, config, initiator=True) as connection:
            assert connection.peer_id == B.peer_id
            started = trio.current_time()
            for protocol in (IDENTIFY_PROTOCOL, PING_PROTOCOL, REVOCATIONS_PROTOCOL):
                with pytest.raises((Sbp2pError, trio.BrokenResourceError)):
                    await connection.open_stream([protocol])
            await connection.wait_closed()
            assert trio.current_time() - started <= HANDSHAKE_TIMEOUT_S + 1
        assert not node.swarm.peers()


async def test_silence_and_floods_before_the_handshake(autojump_clock: MockClock) -> None:
    async with open_town() as town:
        file = invite(B)
        node = await town.node(B, file)
        config = replace(
            NodeConfig(), connection=replace(NodeConfig().connection, prologue=prologue_of(file))
        )
        raw = await town.network.connect(node.addresses[0].without_peer())
        async with open_connection(raw, C, config, initiator=True) as connection:
            refused = 0
            async with trio.open_nursery() as nursery:

                async def knock() -> None:
                    nonlocal refused
                    try:
                        await connection.open_stream([IDENTIFY_PROTOCOL])
                    except (Sbp2pError, trio.BrokenResourceError):
                        refused += 1

                for _ in range(3 * EARLY_STREAMS_MAX):
                    nursery.start_soon(knock)
            assert refused == 3 * EARLY_STREAMS_MAX
            await connection.wait_closed()


async def test_revoked_while_connected(autojump_clock: MockClock) -> None:
    """The owner's process reads its file again; everybody hears of it, and writes it down."""
    async with open_town() as town:
        a, b, c = [
            await town.node(each, invite(each, serial=number))
            for number, each in enumerate((A, B, C), 1)
        ]
        await meet(a, b)
        await meet(b, c)
        await meet(c, a)
        listed = revoking(C, serial=3)
        a.file.swarm = invite(A, revocations=listed)
        await trio.sleep(6)
        assert a.swarm.peers() == [B.peer_id]
        assert b.swarm.peers() == [A.peer_id]
        assert not c.swarm.peers()
        await trio.sleep(1)
        assert b.file.written == [listed.sign(OWNER)]
        assert a.file.written == [], "it came from there"
        with pytest.raises(PeerUnreachableError):
            await meet(c, b)


async def test_a_list_is_heard_of_in_the_handshake(autojump_clock: MockClock) -> None:
    async with open_town() as town:
        a, b, c = [
            await town.node(each, invite(each, serial=number))
            for number, each in enumerate((A, B, C), 1)
        ]
        await meet(b, c)
        newer = await town.node(key(5), invite(key(5), serial=5, revocations=revoking(C, serial=3)))
        await meet(newer, a)
        await meet(a, b)
        await trio.sleep(7)
        assert C.peer_id not in b.swarm.peers()
        assert c.swarm.peers() == []


async def test_expires_while_connected(autojump_clock: MockClock) -> None:
    async with open_town() as town:
        a = await town.node(A, invite(A, expires=NOW + 30))
        b = await town.node(B, invite(B))
        await meet(a, b)
        await trio.sleep(25)
        assert b.swarm.peers()
        await trio.sleep(12)
        assert not b.swarm.peers()
        # a renewed certificate is shown as soon as it is in the file
        a.file.swarm = invite(A, serial=9)
        await trio.sleep(10)
        await meet(a, b)


async def test_a_lent_membership(autojump_clock: MockClock) -> None:
    """A second process of a member, under a key that it has just made."""
    async with open_town() as town:
        b = await town.node(B, invite(B))
        lent = await town.node(C, invite(A), lent=delegate(A, C))
        await meet(lent, b)
        assert b.swarm.peers() == [C.peer_id]
        stolen = await town.node(key(6), invite(A), lent=delegate(A, C))
        with pytest.raises(PeerUnreachableError):
            await meet(stolen, b)


async def test_capabilities(autojump_clock: MockClock) -> None:
    async with open_town() as town:
        a = await town.node(A, invite(A, capabilities=Capability.SEND))
        b = await town.node(B, invite(B))
        await meet(a, b)
        assert b.swarm.roles.rules.role(A.peer_id) is Role.LEECH, "it is not sent anything"
        assert a.swarm.roles.rules.role(B.peer_id) is Role.PEER
        nothing = await town.node(C, invite(C, capabilities=Capability(4)))
        with pytest.raises(PeerUnreachableError):
            await meet(nothing, b)


async def test_a_list_that_the_owner_has_not_signed(autojump_clock: MockClock) -> None:
    async with open_town() as town:
        a, b = await town.node(A, invite(A)), await town.node(B, invite(B))
        await meet(a, b)
        stream = await a.swarm.open_stream(B.peer_id, [REVOCATIONS_PROTOCOL])
        await stream.send_all(b"\x05hello")
        await stream.send_eof()
        await wait_all_tasks_blocked()
        await trio.sleep(1)
        assert b.membership is not None
        assert b.membership.revocations.value.number == 0
        assert b.file.written == []
