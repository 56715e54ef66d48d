"""The asking side of one exchange stream: requests out, verified-by-others blocks in.

Theory of operation: bytes go in through `receive_data`, events come out of `next_event`, bytes to
send out of `data_to_send`. A chunk full of short messages is taken in slices: while `unread`, call
`receive_more` instead of the next `receive_data`, and let others run between.

Every block that was asked for is answered exactly once, by BLOCK or by REJECT, so the machine knows
at any time what the peer owes and refuses what it does not owe. It does not hash: the driver does
that in a thread and blames the peer.

    state      may ask                    ends by
    GREETING   versions, subscriptions    HELLO of the peer -> OPEN
    OPEN       everything                 GOODBYE or end of stream -> CLOSED
    CLOSED     nothing                    -

Time: a peer that owes blocks and makes no progress (`exchange_debts`) for `progress_timeout_s` is
`stalled`: its debts are reported once (give them to others) and nothing more is asked of it until
it makes progress. Blocks that come late are still delivered.

Choking: a peer that has choked this side would reject requests for leaf blocks, so there is no
`room` for them; what it owes by then it may send or reject. Tree nodes may be asked for all the
same.

Error cases: `receive_data` raises RemoteProtocolError for anything the protocol does not allow
(a block that is not owed or has another length, an index beyond the version, a message of the
asking side, bytes after GOODBYE); the stream is then of no more use. Calls in the wrong state
raise LocalProtocolError.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from .errors import LocalProtocolError, RemoteProtocolError
from .exchange_debts import Debts
from .exchange_events import (
    BlockArrived,
    Choked,
    ClientEvent,
    Greeted,
    NodeArrived,
    NodeRejected,
    PeerLeft,
    PeersTold,
    Rejected,
    RootMissing,
    Stalled,
    VersionArrived,
    VersionMissing,
)
from .exchange_frames import FrameSplitter, Payload, SliceBudget
from .exchange_messages import (
    EXCHANGE_VERSION,
    ORDERED_FEATURE,
    SWARM_FEATURE,
    BlockHeader,
    Cancel,
    Choke,
    GetNodes,
    GetVersion,
    Goodbye,
    GoodbyeCode,
    Have,
    HaveAll,
    HaveBitmap,
    Hello,
    Message,
    NotFound,
    Peers,
    Reject,
    Request,
    Resolve,
    Subscribe,
    Unsubscribe,
    VersionHeader,
    decode_message,
    encode_message,
)
from .exchange_news import checked, got_messages, peers_messages, wants_messages
from .framing import encode_length_prefixed
from .limits import (
    EXCHANGE_NODES_BATCH,
    EXCHANGE_QUEUE_MAX,
    EXCHANGE_REQUEST_BATCH,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    from .cid import Cid
    from .pipeline import Pipeline

NODE_ESTIMATE: Final = 64 * 1024
"""Bytes that an asked loose block counts for until it comes: a node of 1024 links has 50 KiB. At
NODE_BLOCK_MAX each, two of them would fill a new peer's window."""

STUCK_S: Final = 2.0
"""A peer that has sent nothing for so long may as well give back what it should be sending."""


class ClientState(Enum):
    """Where the stream is in its life."""

    GREETING = auto()
    OPEN = auto()
    CLOSED = auto()


class ExchangeClient:
    """One stream on which this side asks; see the module's theory of operation.

    Args:
        pipeline_bytes: most bytes to have asked of the peer at once.
        progress_timeout_s: seconds without progress after which the peer counts as stalled.
        now: seconds of the clock that all other times are of.
        ordered: whether blocks are asked for in an order of this side's own.
    """

    def __init__(
        self, *, pipeline_bytes: int, progress_timeout_s: float, now: float, ordered: bool = False
    ) -> None:
        self.state = ClientState.GREETING
        self.choked = False
        self.tells = False
        """Whether the peer speaks of wants and gains itself, so that telling it is of use."""
        self._debts = Debts(pipeline_bytes=pipeline_bytes, timeout_s=progress_timeout_s, now=now)
        self._max_requests = 1
        self._splitter = FrameSplitter()
        self._chunk_bytes = 0
        self._payload: BlockHeader | VersionHeader | None = None
        self._events: deque[ClientEvent] = deque()
        self._out: list[bytes] = []
        self._asked: set[int] = set()
        self._subscriptions: dict[int, int] = {}
        self._next_id = 0
        self._greeted_at = now
        features = (SWARM_FEATURE, ORDERED_FEATURE) if ordered else (SWARM_FEATURE,)
        self._send(Hello(EXCHANGE_VERSION, features, pipeline_bytes, EXCHANGE_QUEUE_MAX))

    @property
    def closed(self) -> bool:
        """Whether either side has said goodbye."""
        return self.state is ClientState.CLOSED

    @property
    def stalled(self) -> bool:
        """Whether the peer owes something and makes no progress."""
        return self._debts.stalled

    @property
    def pipeline(self) -> Pipeline:
        """How much may be asked for at once, and how fast it comes."""
        return self._debts.pipeline

    @property
    def owed_bytes(self) -> int:
        """Bytes asked for and not answered."""
        return self._debts.owed_bytes

    # -- asking ---------------------------------------------------------------------------------

    def get_version(self, manifest: Cid) -> int:
        """Ask for the signed document of `manifest`; returns the request's number."""
        number = self._new_id()
        self._asked.add(number)
        self._send(GetVersion(number, manifest))
        return number

    def resolve(self, publisher: bytes, name: str, version: int | None = None) -> int:
        """Ask for the newest (or exactly that) version of a name; returns the request's number."""
        number = self._new_id()
        self._asked.add(number)
        self._send(Resolve(number, publisher, name, version))
        return number

    def subscribe(self, root: Cid, size: int) -> int:
        """Ask what the peer has of the version with this root and `size` unique blocks."""
        number = self._new_id()
        self._subscriptions[number] = size
        self._send(Subscribe(number, root))
        return number

    def unsubscribe(self, subscription: int) -> None:
        """Stop following; what is still on its way is dropped."""
        self._require_subscribed(subscription)
        self._subscriptions[subscription] = -1
        if self.state is not ClientState.CLOSED:
            self._send(Unsubscribe(subscription))

    def tell_wants(self, subscription: int, bits: bytes) -> None:
        """Tell the peer which blocks are wanted, as a whole bitmap; empty chunks are left out."""
        self._require_subscribed(subscription)
        self._send(*wants_messages(subscription, bits))

    def tell_got(self, subscription: int, indices: Sequence[int]) -> None:
        """Tell the peer which blocks this side has now."""
        self._require_subscribed(subscription)
        self._send(*got_messages(subscription, indices))

    def tell_peers(self, root: Cid, records: Sequence[bytes]) -> None:
        """Tell the peer of others that have to do with a root, by their signed records."""
        self._send(*peers_messages(root, records))

    def _require_subscribed(self, subscription: int) -> None:
        if self._subscriptions.get(subscription, -1) < 0:
            raise LocalProtocolError(f"no subscription {subscription}")

    def room(self) -> int:
        """Bytes of leaf blocks that may be asked for now; 0 or less for none."""
        return 0 if self.choked else self.room_nodes()

    def room_nodes(self) -> int:
        """Bytes of loose blocks that may be asked for now; 0 or less for none."""
        if self.state is not ClientState.OPEN or self.stalled:
            return 0
        if len(self._debts) >= self._max_requests:
            return 0
        return self.pipeline.window - self.owed_bytes

    def room_requests(self) -> int:
        """How many more requests the peer bears."""
        return self._max_requests - len(self._debts)

    def owes(self, digest: bytes) -> bool:
        """Whether the peer owes this block, cancelled or not."""
        return self._debts.get(digest) is not None

    @property
    def owed_blocks(self) -> int:
        """How many blocks and nodes the peer owes."""
        return len(self._debts)

    def expected_wait(self, digest: bytes, now: float) -> float:
        """Guess the seconds until a block has come, from how it went lately; 0 if not owed."""
        return self._debts.expected_wait(digest, now)

    def may_give_back(self, digest: bytes, now: float) -> bool:
        """Whether the peer is likely not to be sending a block yet, or to have got stuck."""
        return not self._debts.is_next(digest) or self._debts.silent_for(now) > STUCK_S

    def request(self, blocks: Iterable[tuple[bytes, int]], now: float) -> None:
        """Ask for blocks, given as (digest, length). One that is owed already is not asked again.

        Raises:
            LocalProtocolError: not OPEN.
        """
        self._require_open()
        add = self._debts.add
        digests = [digest for digest, length in blocks if add(digest, length, None, now)]
        for at in range(0, len(digests), EXCHANGE_REQUEST_BATCH):
            self._send(Request(tuple(digests[at : at + EXCHANGE_REQUEST_BATCH])))

    def get_nodes(self, cids: Iterable[Cid], now: float) -> None:
        """Ask for loose blocks by CID, whose lengths are not known; otherwise like `request`."""
        self._require_open()
        asked = [cid for cid in cids if self._debts.add(cid.digest, NODE_ESTIMATE, cid, now)]
        for at in range(0, len(asked), EXCHANGE_NODES_BATCH):
            self._send(GetNodes(tuple(asked[at : at + EXCHANGE_NODES_BATCH])))

    def cancel(self, digests: Iterable[bytes]) -> None:
        """Withdraw requests. Each stays owed until the peer answers it; its answer is dropped."""
        self._send_cancel(self._debts.withdraw(digests))

    def recall(self, digests: Iterable[bytes]) -> bool:
        """Ask the peer to give requests back that it is not serving yet.

        One that it gives back comes as Rejected with reason CANCELLED; one that it was serving
        already comes as a block like any other. Returns False if all had been called back before.
        """
        recalled = self._debts.recall(digests)
        self._send_cancel(recalled)
        return bool(recalled)

    def _send_cancel(self, digests: Sequence[bytes]) -> None:
        if self.state is ClientState.OPEN:
            for at in range(0, len(digests), EXCHANGE_REQUEST_BATCH):
                self._send(Cancel(tuple(digests[at : at + EXCHANGE_REQUEST_BATCH])))

    def goodbye(self, code: GoodbyeCode = GoodbyeCode.DONE, reason: str = "") -> None:
        """Say that nothing more will be asked; the state becomes CLOSED."""
        if self.state is not ClientState.CLOSED:
            self._send(Goodbye(code, reason))
            self.state = ClientState.CLOSED

    def _require_open(self) -> None:
        if self.state is not ClientState.OPEN:
            raise LocalProtocolError(f"blocks cannot be asked for when {self.state.name}")

    def _new_id(self) -> int:
        if self.state is ClientState.CLOSED:
            raise LocalProtocolError("the stream is closed")
        self._next_id += 1
        return self._next_id

    # -- bytes out ------------------------------------------------------------------------------

    def data_to_send(self) -> bytes:
        """Return and forget the bytes to send, in order."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    @property
    def has_output(self) -> bool:
        """Whether `data_to_send` would return anything."""
        return bool(self._out)

    def _send(self, *messages: Message) -> None:
        self._out += [encode_length_prefixed(encode_message(message)) for message in messages]

    # -- bytes in -------------------------------------------------------------------------------

    def next_event(self) -> ClientEvent | None:
        """Return the next event, or None until more bytes or time come."""
        return self._events.popleft() if self._events else None

    def receive_data(self, data: Buffer, now: float) -> None:
        """Take bytes of the stream; their memory belongs to the machine from then on.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
        """
        if self.state is ClientState.CLOSED:
            return  # after our own goodbye answers may still be on their way
        self._splitter.feed(data)
        self._chunk_bytes = memoryview(data).nbytes
        self.receive_more(now)

    @property
    def unread(self) -> bool:
        """Whether a part of what was received waits for `receive_more`."""
        return not self._splitter.used_up

    def receive_more(self, now: float) -> None:
        """Take the next slice of what was received; raises RemoteProtocolError."""
        budget = SliceBudget()
        while not self.closed:
            if self._payload is not None:
                parts = self._splitter.take_payload()
                if parts is None:
                    self._debts.partial_progress(self._chunk_bytes, now)
                    return
                self._end_payload(self._payload, parts, now)
                continue
            frame = self._splitter.next_frame()
            if frame is None:
                return
            message = decode_message(frame)
            if message is not None:
                self._take(message, now)
            if not budget.spend(frame) and self._payload is None:
                break
        if self.closed:
            self._splitter.discard()

    def receive_eof(self) -> None:
        """Take the end of the stream.

        Raises:
            RemoteProtocolError: it ended inside a message.
        """
        if self._splitter.mid_message and self.state is not ClientState.CLOSED:
            raise RemoteProtocolError("the exchange stream ended inside a message")
        self._leave(GoodbyeCode.DONE, "the stream ended")

    def _leave(self, code: GoodbyeCode, reason: str) -> None:
        if self.state is not ClientState.CLOSED:
            self.state = ClientState.CLOSED
            self._events.append(PeerLeft(code, reason))

    def _take(self, message: Message, now: float) -> None:
        if self.state is ClientState.GREETING and not isinstance(message, (Hello, Goodbye)):
            raise RemoteProtocolError("the first exchange message is not HELLO")
        match message:
            case BlockHeader():
                self._begin_block(message)
            case Have() | HaveBitmap() | HaveAll():
                self._take_have(message)
            case Reject():
                self._take_reject(message, now)
            case VersionHeader():
                if message.request not in self._asked:
                    raise RemoteProtocolError(f"a version that nobody asked for: {message.request}")
                self._begin(message, message.length)
            case NotFound():
                self._take_not_found(message.request)
            case Hello():
                self._take_hello(message, now)
            case Choke(choked):
                if choked is not self.choked:
                    self.choked = choked
                    self._events.append(Choked(choked))
            case Peers(root, records):
                self._events.append(PeersTold(root, records))
            case Goodbye():
                self._leave(message.code, message.reason)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} from the serving side")

    def _take_hello(self, hello: Hello, now: float) -> None:
        if self.state is not ClientState.GREETING:
            raise RemoteProtocolError("a second HELLO")
        self.state = ClientState.OPEN
        self.tells = SWARM_FEATURE in hello.features
        self._max_requests = min(hello.max_requests, EXCHANGE_QUEUE_MAX)
        self.pipeline.cap = min(self.pipeline.cap, hello.max_outstanding_bytes)
        self.pipeline.floor = min(self.pipeline.floor, self.pipeline.cap)
        self.pipeline.window = min(self.pipeline.window, self.pipeline.cap)
        self.pipeline.measured_rtt(now - self._greeted_at)
        self._events.append(Greeted(hello))

    # -- answers --------------------------------------------------------------------------------

    def _begin(self, header: BlockHeader | VersionHeader, length: int) -> None:
        self._payload = header
        self._splitter.begin_payload(length)

    def _begin_block(self, header: BlockHeader) -> None:
        debt = self._debts.get(header.digest)
        if debt is None:
            raise RemoteProtocolError(f"block {header.digest.hex()[:16]} was not asked for")
        if debt.cid is None and header.length != debt.length:
            raise RemoteProtocolError(
                f"block {header.digest.hex()[:16]} of {header.length} bytes, not {debt.length}"
            )
        self._begin(header, header.length)

    def _end_payload(self, header: BlockHeader | VersionHeader, parts: Payload, now: float) -> None:
        self._payload = None
        self._debts.progress(now)
        if isinstance(header, VersionHeader):
            self._asked.discard(header.request)
            self._events.append(VersionArrived(header.request, b"".join(parts)))
            return
        debt = self._debts.settle(header.digest)
        self.pipeline.measured_rtt(now - debt.asked_at)
        self.pipeline.delivered(header.length, now, idle=not self._debts)
        if not debt.wanted:
            return
        if debt.cid is None:
            self._events.append(BlockArrived(header.digest, parts, header.length))
        else:
            self._events.append(NodeArrived(debt.cid, b"".join(parts)))

    def _take_reject(self, message: Reject, now: float) -> None:
        blocks: list[bytes] = []
        for digest in message.digests:
            if self._debts.get(digest) is None:
                raise RemoteProtocolError(f"reject of {digest.hex()[:16]}, which was not asked for")
            debt = self._debts.settle(digest)
            if not debt.wanted:
                continue
            if debt.cid is None:
                blocks.append(digest)
            else:
                self._events.append(NodeRejected(debt.cid, message.reason))
        self._debts.progress(now)
        if not self._debts:
            self.pipeline.delivered(0, now, idle=True)
        if blocks:
            self._events.append(Rejected(tuple(blocks), message.reason))

    def _take_not_found(self, number: int) -> None:
        if number in self._asked:
            self._asked.discard(number)
            self._events.append(VersionMissing(number))
        elif number in self._subscriptions:
            if self._subscriptions[number] >= 0:
                self._events.append(RootMissing(number))
        else:
            raise RemoteProtocolError(f"not found, but {number} was not asked for")

    def _take_have(self, message: Have | HaveBitmap | HaveAll) -> None:
        size = self._subscriptions.get(message.subscription)
        if size is None:
            raise RemoteProtocolError(f"news about {message.subscription}, which nobody follows")
        if size < 0:
            return
        self._events.append(checked(message, size))

    # -- time -----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `handle_timer` wants to be called, or None while nothing is owed."""
        return self._debts.deadline() if self.state is ClientState.OPEN else None

    def handle_timer(self, now: float) -> None:
        """Take the time: reports a stall when the deadline has passed."""
        deadline = self.next_deadline()
        if deadline is not None and now >= deadline:
            self._debts.stalled = True
            self._events.append(Stalled(*self._debts.wanted()))

    def resume(self, now: float) -> None:
        """Say that this side did not read until now, so the peer is not to blame."""
        self._debts.resume(now)
