"""Serves one peer's exchange stream: answers its questions, reads blocks ahead and sends them.

Theory of operation. Four tasks share the machine (`ExchangeServer`) and one stream:

    receive  stream -> machine -> questions, each answered by a short task of its own
    read     machine's queue -> store, in a thread -> at most two batches of blocks in memory
    send     machine's control bytes and the read blocks -> stream; the only one that sends
    time     looks at slots and turns, at what was shown, and at which peers to tell of

A block is sent when it is this session's turn (`uploads`); control messages need none. One that was
cancelled, or whose peer was choked, before it went out is rejected.

A peer that asks and does not read fills its own control output, and is then not read from. It
holds two batches of blocks at most, and two blocks when memory is short (`serve_memory_bytes`).

Error cases: a peer that breaks the protocol is penalized and its stream reset; a block that cannot
be read is rejected; a lost stream ends everything here quietly.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.errors import StoreError
from sbp2p.swarm import VIOLATION_POINTS
from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.exchange_events import (
    GotTold,
    NameWanted,
    PeerLeft,
    PeersTold,
    Subscribed,
    Unsubscribed,
    VersionWanted,
    WantsTold,
    WorkQueued,
)
from sbp2p_protocol.exchange_messages import GoodbyeCode, RejectReason
from sbp2p_protocol.exchange_server import ExchangeServer
from sbp2p_protocol.limits import EXCHANGE_OUTPUT_MAX, EXCHANGE_WANTS_MAX

from .following import Following
from .reading import HEADROOM, ReadBlock, read_batch
from .records import RecordReader
from .signal import Signal
from .uploads import CHECK_S

if TYPE_CHECKING:
    from sbp2p.calls import Calls
    from sbp2p.config import ExchangeConfig
    from sbp2p.store import Store
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_protocol.cid import Cid

    from .gossip import Gossip
    from .library import Library
    from .permits import Permits
    from .reading import BlockBuffers
    from .uploads import Uploads

_TIME_S: Final = 0.5
"""How often slots, turns and what was shown are looked at."""

_PEERS_FIRST_S: Final = 0.05
_PEERS_LAST_S: Final = 30.0
"""How often it is looked whether there are peers to tell of, if nobody says so: what a peer says
of itself by identify may come after it subscribes."""

_FAREWELL_S: Final = 1.0
"""How long a peer that gets nothing more has to take what it is being sent, and the goodbye."""


@dataclass(slots=True)
class ServingStatistics:
    """What one peer got over one stream."""

    peer_id: PeerId
    bytes_sent: int = 0
    """Block payload only."""
    blocks_sent: int = 0
    blocks_rejected: int = 0


class ServingSession:
    """One stream on which a peer asks; `run` returns when it is over."""

    def __init__(
        self,
        stream: Stream,
        *,
        swarm: Swarm,
        store: Store,
        library: Library,
        permits: Permits,
        uploads: Uploads,
        gossip: Gossip,
        buffers: BlockBuffers,
        threads: Calls,
        config: ExchangeConfig,
    ) -> None:
        self.server = ExchangeServer(max_outstanding_bytes=config.pipeline_bytes)
        self.peer_id = stream.peer_id
        self.statistics = ServingStatistics(stream.peer_id)
        self._stream = stream
        self._swarm = swarm
        self._store = store
        self._library = library
        self._permits = permits
        self._uploads = uploads
        self._gossip = gossip
        self._reader = RecordReader(swarm, stream.peer_id)
        self._buffers = buffers
        self._threads = threads
        self._config = config
        self._output = Signal()
        self._drained = Signal()
        self._work = Signal()
        self._parted = trio.Event()
        self._peers_news = Signal()
        self._ready: deque[ReadBlock] = deque()
        self._following: dict[int, Following] = {}
        self._wants_bytes = 0
        self._timed = False

    def wake(self) -> None:
        """Have the sending task look for something to send."""
        self._output.fire()

    @property
    def bytes_sent(self) -> int:
        """What the connection has sent so far, everything together."""
        return self._stream.connection.bytes_sent

    def choke(self, *, choked: bool) -> None:
        """Serve the peer no longer, or again."""
        self.server.choke(choked=choked)
        for following in tuple(self._following.values()):
            if choked:
                following.paused()
            else:
                following.shown_more()
        self.wake()

    async def run(self) -> None:
        """Serve until the peer leaves, the stream is lost, or the peer breaks the protocol."""
        self._uploads.joined(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, nursery.cancel_scope)
                nursery.start_soon(self._read)
                nursery.start_soon(self._keep_to_roles, nursery.cancel_scope)
                await self._receive(nursery)
                nursery.cancel_scope.cancel()
        finally:
            for following in self._following.values():
                self._library.unfollow(following.root, following)
            self._following.clear()
            self._uploads.left(self)
            for read in self._ready:
                self._buffers.give(read.buffer)
            self._ready.clear()

    async def refuse(self, reason: str) -> None:
        """Say goodbye at once: this node serves enough already."""
        self.server.goodbye(GoodbyeCode.REFUSED, reason)
        try:
            await self._stream.send_all(self.server.data_to_send())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    # -- receive --------------------------------------------------------------------------------

    async def _receive(self, nursery: trio.Nursery) -> None:
        try:
            while not self.server.closed:
                if self.server.unread:  # the last read was many short messages
                    await trio.lowlevel.checkpoint()
                    self.server.receive_more()
                elif data := await self._stream.receive_some():
                    self.server.receive_data(data)
                else:
                    self.server.receive_eof()
                await self._take_events(nursery)
                self.wake()
                while self.server.output_size > EXCHANGE_OUTPUT_MAX:
                    await self._drained.wait()
        except RemoteProtocolError as error:
            self._swarm.penalize(self._stream.peer_id, VIOLATION_POINTS, f"exchange: {error}")
            self._stream.reset()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            observe.report_stream_failed(self._stream, error)

    async def _take_events(self, nursery: trio.Nursery) -> None:
        while (event := self.server.next_event()) is not None:
            match event:
                case WorkQueued():
                    self._work.fire()
                case VersionWanted() | NameWanted():
                    nursery.start_soon(self._answer, event)
                case Subscribed(subscription, root):
                    # here and not in a task: a peer that subscribes again and again has to wait
                    await self._subscribe(subscription, root)
                    if not self._timed:
                        self._timed = True
                        nursery.start_soon(self._keep_time)
                        nursery.start_soon(self._tell_peers)
                case Unsubscribed(subscription):
                    following = self._following.pop(subscription, None)
                    if following is not None:
                        self._library.unfollow(following.root, following)
                        self._interest(False)
                case WantsTold(subscription, start, bits):
                    if subscription in self._following:
                        self._following[subscription].take_wants(start, bits)
                case GotTold(subscription, indices):
                    if subscription in self._following:
                        self._following[subscription].take_got(indices)
                case PeersTold(root, records):
                    for source in self._reader.read(records):
                        self._library.peer_found(root, source)
                case PeerLeft():
                    return
                case _:
                    pass

    async def _answer(self, question: VersionWanted | NameWanted) -> None:
        try:
            if isinstance(question, VersionWanted):
                record = await self._library.version(question.manifest)
            else:
                publisher = PeerId.from_bytes(question.publisher)
                record = await self._library.named(publisher, question.name, question.version)
        except (KeysError, StoreError) as error:
            observe.report_stream_failed(self._stream, error)
            record = None
        peer_id = self._stream.peer_id
        if record is None or not self._permits.manifest(peer_id, record.manifest):
            self.server.send_not_found(question.request)
        else:
            self.server.send_version(question.request, record.document.to_bytes())
        self.wake()

    async def _subscribe(self, subscription: int, root: Cid) -> None:
        # before looking, so that nothing gained meanwhile is missed
        following = self._following[subscription] = Following(
            self.peer_id,
            self.server,
            subscription,
            root,
            library=self._library,
            wake=self.wake,
            interest=self._interest,
            grow=self._grow,
            peers_changed=self._peers_news.fire,
        )
        self._library.follow(root, following)
        await self._tell_holdings(following)

    async def _tell_holdings(self, following: Following) -> None:
        """Tell a subscriber what is here, if it may have it."""
        holdings, show, peer_id = None, None, self._stream.peer_id
        try:
            permitted = await self._threads.run(self._permits.root, peer_id, following.root)
            following.muted = not permitted
            if permitted:
                holdings = await self._library.holdings(following.root)
            if holdings is not None and holdings.bits is None and self.server.peer_is_shown:
                show = await self._library.show(following.root)
        except StoreError as error:
            observe.report_stream_failed(self._stream, error)
        following.begin(holdings, show)
        self.wake()

    def _interest(self, certain: bool) -> None:
        """The peer may have begun, or ceased, to want something."""
        wanting = certain or any(each.is_interested() for each in self._following.values())
        self._uploads.wants(self, wanting=wanting)

    def _grow(self, count: int) -> bool:
        """Whether `count` more bytes may be kept of what the peer wants."""
        if self._wants_bytes + count > EXCHANGE_WANTS_MAX:
            return False
        self._wants_bytes += count
        return True

    # -- time -----------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        while True:
            await trio.sleep(_TIME_S)
            self._uploads.check_time()
            now = trio.current_time()
            for following in tuple(self._following.values()):
                following.check_time(now, idle=not self.server.owed)

    async def _tell_peers(self) -> None:
        """Tell of peers when there are new ones."""
        wait = _PEERS_FIRST_S
        while True:
            for following in self._following.values():
                records = self._gossip.news_for(following)
                if records:
                    self.server.send_peers(following.root, records)
                    self.wake()
            with trio.move_on_after(wait):
                await self._peers_news.wait()
                wait = _PEERS_FIRST_S
            await trio.sleep(_PEERS_FIRST_S)
            wait = min(2 * wait, _PEERS_LAST_S)

    # -- roles ----------------------------------------------------------------------------------

    async def _keep_to_roles(self, scope: trio.CancelScope) -> None:
        """Do what other rules ask for, as soon as they hold."""
        rules = self._permits.rules
        while True:
            rules = await self._swarm.roles.wait_changed(rules)
            refusal = self._permits.refusal(self._stream.peer_id)
            if refusal is not None:
                self.server.goodbye(GoodbyeCode.REFUSED, refusal)
                self.wake()
                with trio.move_on_after(_FAREWELL_S) as patience:
                    await self._parted.wait()
                if patience.cancelled_caught:  # a block is on its way, and slowly
                    self._stream.reset()
                scope.cancel()
                return
            for following in list(self._following.values()):
                await self._tell_holdings(following)

    # -- read -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        most = self._config.serve_batch_blocks
        while True:
            size = 1 if self._buffers.crowded else most
            if not self.server.queued or len(self._ready) > size - 1:
                await self._work.wait()
                continue
            batch = self._take_batch(size)
            given_back = False
            try:
                await self._threads.run(
                    read_batch, self._store, self._permits, self._stream.peer_id, batch
                )
                self._ready.extend(batch)
                given_back = True
            finally:
                if not given_back:
                    for _ in batch:
                        self._buffers.give(None)
            self.wake()

    def _take_batch(self, most: int) -> list[ReadBlock]:
        batch: list[ReadBlock] = []
        while len(batch) < most and (wanted := self.server.next_wanted()) is not None:
            batch.append(ReadBlock(wanted, self._buffers.take(), self._permits.rules))
        return batch

    # -- send -----------------------------------------------------------------------------------

    async def _send(self, scope: trio.CancelScope) -> None:
        try:
            while True:
                await self._send_control()
                if self.server.closed:
                    self._parted.set()
                if self._ready and self._may_send(self._ready[0]):
                    await self._send_read(self._ready.popleft())
                    self._uploads.give_back(self)
                elif self._ready:
                    with trio.move_on_after(CHECK_S) as limit:
                        await self._output.wait()
                    if limit.cancelled_caught:
                        self._uploads.check_time()
                elif not self.server.output_size:
                    await self._output.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            observe.report_stream_failed(self._stream, error)
            scope.cancel()

    def _may_send(self, read: ReadBlock) -> bool:
        """Whether a block need not wait for a turn, or has it."""
        wanted = read.wanted
        if wanted.withdrawn is not None:
            read.outcome = wanted.withdrawn
        if wanted.cid is not None or isinstance(read.outcome, RejectReason):
            return True
        return self._uploads.turn(self)

    async def _send_control(self) -> None:
        for following in self._following.values():
            following.flush()
        data = self.server.data_to_send()
        if data:
            await self._send_bytes(memoryview(data))
            self._drained.fire()

    async def _send_read(self, read: ReadBlock) -> None:
        buffer, outcome = read.buffer, read.outcome
        try:
            if self.server.closed:
                return
            if read.rules is not self._permits.rules:
                outcome = RejectReason.BUSY  # what it may have now is found out when it asks again
            if isinstance(outcome, RejectReason):
                self.server.reject(read.wanted.digest, outcome)
                self.statistics.blocks_rejected += 1
                if outcome in (RejectReason.NOT_HAVE, RejectReason.CHANGED):
                    self._note_shown(read)  # lost here: nothing to hold back for it
                return
            header = self.server.block_header(read.wanted.digest, outcome)
            start = HEADROOM - len(header)
            if start < 0:
                await self._send_bytes(memoryview(header))
                start = HEADROOM
            else:
                buffer[start:HEADROOM] = header
            await self._send_bytes(memoryview(buffer)[start : HEADROOM + outcome])
            self.statistics.bytes_sent += outcome
            self.statistics.blocks_sent += 1
            self._library.ledger.sent(self._stream.peer_id, self._root_of(read), outcome)
            self._note_shown(read)
        finally:
            self._buffers.give(buffer)
            self._work.fire()

    def _root_of(self, read: ReadBlock) -> Cid | None:
        """Return the version that a block was asked for, if there is no doubt."""
        roots = {following.root for following in self._following.values()}
        return roots.pop() if read.wanted.cid is None and len(roots) == 1 else None

    def _note_shown(self, read: ReadBlock) -> None:
        """Have super-seeding go on: a block that was asked for is answered."""
        if read.wanted.cid is None:
            contended = self._uploads.contended
            for following in self._following.values():
                following.sent(read.wanted.digest, contended=contended)

    async def _send_bytes(self, data: memoryview) -> None:
        """Send bytes as fast as the limits allow; unlimited, in one go."""
        limits = self._swarm.limits
        while (piece := limits.upload_piece) is not None and data:
            part, data = data[:piece], data[piece:]
            await limits.upload(self._stream.peer_id, len(part))
            await self._stream.send_all(part)
        if data:
            await self._stream.send_all(data)
