"""Serves one peer's exchange stream: answers its questions, reads blocks ahead and sends them.

Theory of operation. Three tasks share the machine (`ExchangeServer`) and one stream:

    receive  stream -> machine -> questions, each answered by a short task of its own
    read     machine's queue -> store, in a thread -> at most two batches of blocks in memory
    send     machine's control bytes and the read blocks -> stream; the only one that sends

A block is read into a reused buffer behind some headroom, and its header is written right before
it, so that a block is one contiguous send. Buffers are reused once `send_all` has returned.

A peer that asks and does not read fills its own control output, and is then not read from. It
holds two batches of blocks at most, and two blocks when memory is short (`serve_memory_bytes`).

Error cases: a peer that breaks the protocol is penalized and its stream reset; a block that cannot
be read is rejected; a lost stream ends everything here quietly.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.errors import StoreError
from sbp2p.store import BlockUnavailableError
from sbp2p.swarm import VIOLATION_POINTS
from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.exchange_events import (
    NameWanted,
    PeerLeft,
    Subscribed,
    Unsubscribed,
    VersionWanted,
    WorkQueued,
)
from sbp2p_protocol.exchange_messages import GoodbyeCode, RejectReason
from sbp2p_protocol.exchange_server import ExchangeServer, Wanted
from sbp2p_protocol.limits import BLOCK_MAX, EXCHANGE_HAVE_BATCH, EXCHANGE_OUTPUT_MAX

from .signal import Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.config import ExchangeConfig
    from sbp2p.roles import Rules
    from sbp2p.store import Store
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_protocol.cid import Cid

    from .library import Library
    from .permits import Permits
    from .threads import Calls

_HEADROOM: Final = 64
"""Bytes in front of a block for its header, which takes 42."""

_FAREWELL_S: Final = 1.0
"""How long a peer that gets nothing more has to take what it is being sent, and the goodbye."""


class BlockBuffers:
    """Memory for blocks on their way out, shared by all streams and reused."""

    def __init__(self, memory_bytes: int) -> None:
        self._free: list[bytearray] = []
        self._used = 0
        self._most = max(1, memory_bytes // BLOCK_MAX)

    @property
    def crowded(self) -> bool:
        """Whether more blocks are held than there should be."""
        return self._used >= self._most

    def take(self) -> bytearray:
        """Return a buffer of headroom and one block; never waits."""
        self._used += 1
        return self._free.pop() if self._free else bytearray(_HEADROOM + BLOCK_MAX)

    def give(self, buffer: bytearray | None) -> None:
        """Take a buffer back; None for one that is still in some thread's hands."""
        self._used -= 1
        if buffer is not None and len(self._free) < self._most:
            self._free.append(buffer)


@dataclass(slots=True)
class ServingStatistics:
    """What one peer got over one stream."""

    peer_id: PeerId
    bytes_sent: int = 0
    """Block payload only."""
    blocks_sent: int = 0
    blocks_rejected: int = 0


@dataclass(slots=True)
class _Read:
    """A request and what came of reading it: a length in `buffer`, or a reason."""

    wanted: Wanted
    buffer: bytearray
    rules: Rules
    """Those that let it be read."""
    outcome: int | RejectReason = RejectReason.NOT_HAVE


class _Following:
    """One subscription of the peer: news that wait to be sent. Is a `Follower`."""

    def __init__(self, session: ServingSession, subscription: int, root: Cid) -> None:
        self.root = root
        self.gained = array("I")
        self.muted = False
        """This node's role keeps it from giving anything of this version to the peer."""
        self._session = session
        self._subscription = subscription

    def told_bits(self, bits: bytes) -> None:
        if self.muted:
            return
        self._session.server.send_bits(self._subscription, bits)
        self._session.wake()

    def told_blocks(self, indices: Sequence[int]) -> None:
        if self.muted:
            return
        self.gained.extend(indices)
        self._session.wake()

    def told_everything(self) -> None:
        if self.muted:
            return
        del self.gained[:]
        self._session.server.send_have_all(self._subscription)
        self._session.wake()

    def told_nothing(self) -> None:
        del self.gained[:]
        self._session.server.send_nothing_here(self._subscription)
        self._session.wake()

    def flush(self) -> None:
        batch = self.gained[:EXCHANGE_HAVE_BATCH]
        del self.gained[:EXCHANGE_HAVE_BATCH]
        self._session.server.send_have(self._subscription, batch)


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
        buffers: BlockBuffers,
        threads: Calls,
        config: ExchangeConfig,
    ) -> None:
        self.server = ExchangeServer(max_outstanding_bytes=config.pipeline_bytes)
        self.statistics = ServingStatistics(stream.peer_id)
        self._stream = stream
        self._swarm = swarm
        self._store = store
        self._library = library
        self._permits = permits
        self._buffers = buffers
        self._threads = threads
        self._config = config
        self._output = Signal()
        self._drained = Signal()
        self._work = Signal()
        self._parted = trio.Event()
        self._ready: deque[_Read] = deque()
        self._following: dict[int, _Following] = {}

    def wake(self) -> None:
        """Have the sending task look for something to send."""
        self._output.fire()

    async def run(self) -> None:
        """Serve until the peer leaves, the stream is lost, or the peer breaks the protocol."""
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
                data = await self._stream.receive_some()
                if data:
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
                case Unsubscribed(subscription):
                    following = self._following.pop(subscription, None)
                    if following is not None:
                        self._library.unfollow(following.root, following)
                case PeerLeft():
                    return

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
        following = self._following[subscription] = _Following(self, subscription, root)
        self._library.follow(root, following)
        await self._tell_holdings(following)

    async def _tell_holdings(self, following: _Following) -> None:
        """Tell a subscriber what is here, if it may have it."""
        holdings, peer_id = None, self._stream.peer_id
        try:
            permitted = await self._threads.run(self._permits.root, peer_id, following.root)
            following.muted = not permitted
            if permitted:
                holdings = await self._library.holdings(following.root)
        except StoreError as error:
            observe.report_stream_failed(self._stream, error)
        if holdings is None:
            following.told_nothing()
        elif holdings.bits is None:
            following.told_everything()
        else:
            following.told_bits(holdings.bits)

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
                    _read_batch, self._store, self._permits, self._stream.peer_id, batch
                )
                self._ready.extend(batch)
                given_back = True
            finally:
                if not given_back:
                    for _ in batch:
                        self._buffers.give(None)
            self.wake()

    def _take_batch(self, most: int) -> list[_Read]:
        batch: list[_Read] = []
        while len(batch) < most and (wanted := self.server.next_wanted()) is not None:
            batch.append(_Read(wanted, self._buffers.take(), self._permits.rules))
        return batch

    # -- send -----------------------------------------------------------------------------------

    async def _send(self, scope: trio.CancelScope) -> None:
        try:
            while True:
                await self._send_control()
                if self.server.closed:
                    self._parted.set()
                if self._ready:
                    await self._send_read(self._ready.popleft())
                elif not self.server.output_size:
                    await self._output.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            observe.report_stream_failed(self._stream, error)
            scope.cancel()

    async def _send_control(self) -> None:
        for following in self._following.values():
            if following.gained:
                following.flush()
        data = self.server.data_to_send()
        if data:
            await self._send_bytes(memoryview(data))
            self._drained.fire()

    async def _send_read(self, read: _Read) -> None:
        buffer, outcome = read.buffer, read.outcome
        try:
            if self.server.closed:
                return
            if read.rules is not self._permits.rules:
                outcome = RejectReason.BUSY  # what it may have now is found out when it asks again
            if isinstance(outcome, RejectReason):
                self.server.reject(read.wanted.digest, outcome)
                self.statistics.blocks_rejected += 1
                return
            header = self.server.block_header(read.wanted.digest, outcome)
            start = _HEADROOM - len(header)
            if start < 0:
                await self._send_bytes(memoryview(header))
                start = _HEADROOM
            else:
                buffer[start:_HEADROOM] = header
            await self._send_bytes(memoryview(buffer)[start : _HEADROOM + outcome])
            self.statistics.bytes_sent += outcome
            self.statistics.blocks_sent += 1
        finally:
            self._buffers.give(buffer)
            self._work.fire()

    async def _send_bytes(self, data: memoryview) -> None:
        """Send bytes as fast as the limits allow; unlimited, in one go."""
        limits = self._swarm.limits
        while (piece := limits.upload_piece) is not None and data:
            part, data = data[:piece], data[piece:]
            await limits.upload(self._stream.peer_id, len(part))
            await self._stream.send_all(part)
        if data:
            await self._stream.send_all(data)


def _read_batch(store: Store, permits: Permits, peer_id: PeerId, batch: Sequence[_Read]) -> None:
    """Read every request of a batch that the peer may have; runs in a thread."""
    wanted = [(read.wanted.digest, read.wanted.cid) for read in batch]
    try:
        permitted = permits.blocks(peer_id, wanted)
    except StoreError:
        permitted = [False] * len(batch)
    for read, may_have in zip(batch, permitted, strict=True):
        read.outcome = RejectReason.REFUSED
        if may_have:
            read.outcome = _read_one(store, read.wanted, memoryview(read.buffer)[_HEADROOM:])


def _read_one(store: Store, wanted: Wanted, into: memoryview) -> int | RejectReason:
    try:
        if wanted.cid is None:
            return len(store.read_block(wanted.digest, into))
        data = store.get_loose(wanted.cid)
    except BlockUnavailableError as error:
        return RejectReason.CHANGED if error.hint else RejectReason.NOT_HAVE
    except StoreError:
        return RejectReason.BUSY
    if data is None:
        return RejectReason.NOT_HAVE
    into[: len(data)] = data
    return len(data)
