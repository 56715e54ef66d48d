"""The DHT's requests over a swarm: streams of `/<network>/kad/1.0.0`.

Asking. A stream carries one request at a time and is kept for the next one, so that a sweep that
asks a server twenty times negotiates once. A kept stream may be ended by the peer at any time; if
that shows at the next request, the request is made again on a new stream.

Telling. Records are written one after the other on a stream of their own, whose direction is then
ended. No answer is waited for, because go and rust send none; one that comes is read and dropped,
or it would fill the window of a peer that does answer. The peer's end of stream means that it has
read everything; without it the records count as taken after `confirm_s`. A reset means that they
were not, unless the peer, when asked, names this node as a provider.

Connections that were made for the DHT would fill the swarm's table in a sweep. Those that are only
the DHT's are closed with their last kept stream, and there are at most `max_connections` of them.

Serving. A handler reads one request after the other and answers each before it reads the next. A
request that no honest peer makes is worth penalty points; one that is refused resets the stream.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from sbp2p import observe
from sbp2p.errors import PeerMisbehavedError, PeerUnreachableError, Sbp2pError
from sbp2p.swarm import VIOLATION_POINTS, PeerDisconnected, PeerIdentified
from sbp2p_protocol.address_scope import Scope, scope_of
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.kad_messages import (
    DEFAULT_NETWORK,
    KadMessage,
    KadPeer,
    KadType,
    kad_protocol,
)
from sbp2p_protocol.kad_server import Requester, RequestRefusedError, visible_to
from sbp2p_protocol.limits import (
    KAD_MESSAGE_MAX,
    KAD_PEER_ADDRESSES_MAX,
    KAD_SERVED_STREAMS,
    KAD_SERVED_STREAMS_EACH,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.config import DhtConfig
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.identify import IdentifyMessage
    from sbp2p_protocol.multiaddr import Address

    from .network import KadUser

_KEPT_EACH = 2
"""Streams to one peer that are kept; more requests at once than that are rare."""

_WRITE_BATCH = 64
"""Records in one write."""

_LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


class _AskingStream:
    """A stream for requests in sequence."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.idle_since = trio.current_time()
        self._reader = LengthPrefixedReader(KAD_MESSAGE_MAX)

    async def ask(self, message: KadMessage) -> KadMessage:
        """Return the reply; raises RemoteProtocolError, or what streams raise."""
        await self.stream.send_all(message.encode())
        while (frame := self._reader.next()) is None:
            data = await self.stream.receive_some()
            if not data:
                raise trio.BrokenResourceError("the peer ended the stream without an answer")
            self._reader.feed(data)
        reply = KadMessage.decode(frame)
        if reply.type is not message.type or (reply.key and reply.key != message.key):
            raise RemoteProtocolError(f"a {reply.type.name} that answers something else")
        if self._reader.buffered:
            raise RemoteProtocolError("more than one answer")
        self.idle_since = trio.current_time()
        return reply


class SwarmNetwork:
    """A `KadNetwork` of real connections."""

    def __init__(self, swarm: Swarm, config: DhtConfig, network: str = DEFAULT_NETWORK) -> None:
        self._swarm = swarm
        self._config = config
        self._protocol = kad_protocol(network)
        self._user: KadUser | None = None
        self._serving = False
        self._kept: dict[PeerId, list[_AskingStream]] = {}
        self._dialled: OrderedDict[PeerId, None] = OrderedDict()
        self._served: Counter[PeerId] = Counter()

    @property
    def peer_id(self) -> PeerId:
        """Who this node is."""
        return self._swarm.peer_id

    def addresses(self) -> tuple[Address, ...]:
        """Return what the swarm announces."""
        return tuple(each.without_peer() for each in self._swarm.announced_addresses())

    def looks_reachable(self) -> bool:
        """Return whether the listen addresses make it likely."""
        own = self._swarm.own_addresses
        return look_reachable(own.listening, confirmed=bool(own.confirmed))

    def can_reach(self, address: Address) -> bool:
        """Return whether the swarm has a transport for an address."""
        return address.is_dialable

    def seen_at(self, peer_id: PeerId) -> Address | None:
        """Return the other end of the oldest connection with a peer."""
        connections = self._swarm.connections(peer_id)
        return connections[0].remote_address if connections else None

    def find(self, peer_id: PeerId) -> KadPeer | None:
        """Return what a connected peer said of itself, and where it was dialled."""
        return self._described(peer_id, self._swarm.identified(peer_id))

    def _described(self, peer_id: PeerId, message: IdentifyMessage | None) -> KadPeer | None:
        connections = self._swarm.connections(peer_id)
        if not connections:
            return None
        dialled = [each.remote_address for each in connections if each.initiator]
        # what it listens on in a narrower world than ours is of no use to whoever we tell
        said = () if message is None else message.addresses
        told = visible_to(connections[0].remote_address, said)
        reachable = [each for each in _bare([*dialled, *told]) if self.can_reach(each)]
        addresses = tuple(dict.fromkeys(reachable))[:KAD_PEER_ADDRESSES_MAX]
        return KadPeer(peer_id, addresses) if addresses else None

    # -- asking -------------------------------------------------------------------------------

    async def dial(self, address: Address) -> PeerId:
        """Connect to whoever is there."""
        connection = await self._swarm.connect([address])
        return connection.peer_id

    async def request(
        self, peer_id: PeerId, addresses: Sequence[Address], message: KadMessage
    ) -> KadMessage:
        """Ask on a kept stream, or a new one."""
        timeout_s = self._config.request_timeout_s
        try:
            with trio.fail_after(timeout_s):
                while (asking := self._take_kept(peer_id)) is not None:
                    with suppress(*_LOST):
                        return await self._ask(asking, message)
                asking = _AskingStream(await self._open(peer_id, addresses))
                return await self._ask(asking, message)
        except trio.TooSlowError:
            raise PeerUnreachableError(
                f"peer {peer_id} did not answer within {timeout_s:g} s"
            ) from None
        except _LOST as error:
            raise PeerUnreachableError(f"peer {peer_id} gave no answer: {error}") from error

    async def _ask(self, asking: _AskingStream, message: KadMessage) -> KadMessage:
        try:
            reply = await asking.ask(message)
        except RemoteProtocolError as error:
            asking.stream.reset()
            peer_id = asking.stream.peer_id
            self._swarm.penalize(peer_id, VIOLATION_POINTS, f"kad answer: {error}")
            raise PeerMisbehavedError(f"peer {peer_id}: {error}") from error
        except BaseException:
            asking.stream.reset()
            raise
        self._keep(asking)
        return reply

    async def _open(self, peer_id: PeerId, addresses: Sequence[Address]) -> Stream:
        try:
            if not any(each.is_open for each in self._swarm.connections(peer_id)):
                self._make_room()
                await self._swarm.connect(addresses, peer_id)
                self._dialled[peer_id] = None
            return await self._swarm.open_stream(peer_id, [self._protocol])
        except PeerUnreachableError:
            raise
        except Sbp2pError as error:  # it serves no DHT, or its addresses name somebody else
            raise PeerUnreachableError(f"peer {peer_id} cannot be asked: {error}") from error

    async def send(
        self, peer_id: PeerId, addresses: Sequence[Address], messages: Sequence[KadMessage]
    ) -> None:
        """Write everything, end the stream, and wait a little for the peer to end it too."""
        try:
            await self._tell(peer_id, addresses, messages)
        except* (trio.TooSlowError, *_LOST) as group:
            slow = group.subgroup(trio.TooSlowError) is not None
            if slow or not await self._kept_by(peer_id, addresses, messages[-1]):
                reason = str(group.exceptions[0]) or "it is too slow"
                raise PeerUnreachableError(
                    f"peer {peer_id} did not take the records: {reason}"
                ) from None

    async def _tell(
        self, peer_id: PeerId, addresses: Sequence[Address], messages: Sequence[KadMessage]
    ) -> None:
        timeout_s = self._config.request_timeout_s
        with trio.fail_after(timeout_s):
            stream = await self._open(peer_id, addresses)
        async with stream, trio.open_nursery() as nursery:
            ended = trio.Event()
            nursery.start_soon(_drain, stream, ended)
            for start in range(0, len(messages), _WRITE_BATCH):
                batch = messages[start : start + _WRITE_BATCH]
                with trio.fail_after(timeout_s):
                    await stream.send_all(b"".join(each.encode() for each in batch))
            await stream.send_eof()
            with trio.move_on_after(self._config.confirm_s):
                await ended.wait()
            nursery.cancel_scope.cancel()

    async def _kept_by(
        self, peer_id: PeerId, addresses: Sequence[Address], last: KadMessage
    ) -> bool:
        """Return whether a peer that reset the stream has the last record nevertheless.

        A reset refuses what was sent. But py-libp2p 0.8 resets every stream that is ended, too.
        """
        if last.type is not KadType.ADD_PROVIDER:
            return False
        question = KadMessage(KadType.GET_PROVIDERS, last.key)
        try:
            reply = await self.request(peer_id, addresses, question)
        except Sbp2pError:
            return False
        return any(each.peer_id == self.peer_id for each in reply.providers)

    # -- streams and connections that are kept ------------------------------------------------

    def _take_kept(self, peer_id: PeerId) -> _AskingStream | None:
        kept = self._kept.get(peer_id, [])
        while kept:
            asking = kept.pop()
            if not asking.stream.is_done and not asking.stream.has_data:
                return asking
            asking.stream.reset()
        self._kept.pop(peer_id, None)
        return None

    def _keep(self, asking: _AskingStream) -> None:
        kept = self._kept.setdefault(asking.stream.peer_id, [])
        kept.append(asking)
        if len(kept) > _KEPT_EACH:
            kept.pop(0).stream.reset()

    def _make_room(self) -> None:
        """Close who was dialled first of those that are not in use, if there are many."""
        while len(self._dialled) >= self._config.max_connections:
            peer_id, _ = self._dialled.popitem(last=False)
            self._release(peer_id)

    def _release(self, peer_id: PeerId) -> None:
        """Close what is kept with a peer, and its connections if only the DHT wanted them."""
        for asking in self._kept.pop(peer_id, []):
            asking.stream.reset()
        for connection in self._swarm.connections(peer_id):
            if connection.initiator and not connection.statistics().open_streams:
                connection.close()

    async def _close_idle(self) -> None:
        limit_s = self._config.stream_idle_s
        while True:
            await trio.sleep(limit_s / 4)
            now = trio.current_time()
            for peer_id, kept in list(self._kept.items()):
                if all(now - asking.idle_since >= limit_s for asking in kept):
                    if peer_id in self._dialled:
                        del self._dialled[peer_id]
                        self._release(peer_id)
                    else:
                        del self._kept[peer_id]
                        for asking in kept:
                            asking.stream.reset()

    # -- serving ------------------------------------------------------------------------------

    def serve(self, *, on: bool) -> None:
        """Tell by identify whether requests are taken."""
        if on and not self._serving:
            self._swarm.handle(self._protocol, self._serve)
        elif self._serving and not on:
            self._swarm.withdraw(self._protocol)
        self._serving = on

    async def _serve(self, stream: Stream) -> None:
        peer_id = stream.peer_id
        if (
            self._served[peer_id] >= KAD_SERVED_STREAMS_EACH
            or self._served.total() >= KAD_SERVED_STREAMS
        ):
            observe.report_refused(stream, "enough streams of requests are served")
            stream.reset()
            return
        self._served[peer_id] += 1
        try:
            await self._serve_requests(stream)
        except RequestRefusedError:
            raise
        except RemoteProtocolError as error:
            self._swarm.penalize(peer_id, VIOLATION_POINTS, f"kad request: {error}")
            raise
        finally:
            self._served[peer_id] -= 1
            if not self._served[peer_id]:
                del self._served[peer_id]

    async def _serve_requests(self, stream: Stream) -> None:
        reader = LengthPrefixedReader(KAD_MESSAGE_MAX)
        requester = Requester(stream.peer_id, stream.connection.remote_address)
        while True:
            with trio.fail_after(self._config.serve_idle_s):
                data = await stream.receive_some()
            if not data:
                reader.finish()
                return
            reader.feed(data)
            while (frame := reader.next()) is not None:
                request = KadMessage.decode(frame)
                if self._user is None or not self._serving:
                    raise trio.ClosedResourceError("this node serves no requests any more")
                reply = self._user.answer(request, requester)
                if reply is not None:
                    with trio.fail_after(self._config.request_timeout_s):
                        await stream.send_all(reply.encode())
                await trio.lowlevel.checkpoint()  # many records in one read are nobody's turn

    # -- events -------------------------------------------------------------------------------

    def attach(self, user: KadUser) -> None:
        """Work for a DHT."""
        self._user = user

    async def run(self) -> None:
        """Tell what identify says, and tidy up, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._close_idle)
                await self._watch()
                nursery.cancel_scope.cancel()
        finally:
            self.serve(on=False)
            self._user = None
            for peer_id in list(self._kept):
                self._release(peer_id)

    async def _watch(self) -> None:
        ended = False
        while not ended:
            with self._swarm.subscribe() as events:
                for peer_id in self._swarm.peers():
                    message = self._swarm.identified(peer_id)
                    if message is not None:
                        self._judge(peer_id, message)
                ended = True
                async for event in events:
                    ended = False  # a channel that ends at once is that of a swarm that has ended
                    if isinstance(event, PeerIdentified):
                        self._judge(event.peer_id, event.message)
                    elif isinstance(event, PeerDisconnected):
                        self._dialled.pop(event.peer_id, None)
                        self._kept.pop(event.peer_id, None)

    def _judge(self, peer_id: PeerId, message: IdentifyMessage) -> None:
        if self._user is None:
            return
        server = self._described(peer_id, message)
        if self._protocol not in message.protocols:
            self._user.server_lost(peer_id)
        elif server is not None:
            self._user.server_found(server)


def look_reachable(listening: Sequence[Address], *, confirmed: bool) -> bool:
    """Return whether others can probably come to a node without help.

    Addresses of this machine count only if there are no others: then everybody is here.

    Args:
        listening: where it listens.
        confirmed: whether peers agree on an address at which they see it.
    """
    scopes = {scope_of(each) for each in listening}
    elsewhere = scopes - {Scope.HERE, Scope.LINK}
    if not elsewhere:
        return Scope.HERE in scopes
    return confirmed or Scope.PRIVATE in elsewhere


def _bare(addresses: Sequence[Address]) -> list[Address]:
    return [
        each.without_peer()
        for each in addresses
        if any(name != "p2p" for name, _ in each.components)
    ]


async def _drain(stream: Stream, ended: trio.Event) -> None:
    """Read what nobody asked for, to the end."""
    while await stream.receive_some():
        pass
    ended.set()
