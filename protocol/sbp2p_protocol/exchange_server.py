"""The serving side of one exchange stream: requests in, answers out.

Theory of operation: bytes go in through `receive_data`; a chunk full of short messages is taken in
slices, the rest by `receive_more` while `unread`, so that others have their turn. Small questions
come out as events and are answered by a `send_` method; block requests are queued here, in order,
and the driver takes them one by one with `next_wanted`, reads the block, and sends `block_header`
followed by its bytes, or `reject`. Every request is answered exactly once, whatever happens to it:
served, rejected, or cancelled while it waited. A request that finds the queue full is rejected as
busy at once.

    state      hears                      ends by
    GREETING   HELLO                      HELLO -> OPEN
    OPEN       everything                 GOODBYE or end of stream -> CLOSED
    CLOSED     nothing                    -

Choking: while the peer is choked, requests for leaf blocks are rejected as choked, those that wait
when it begins at once; tree nodes are served all the same. A request that crosses CHOKE on its way
is no violation.

The order of bytes is the driver's to keep: what `data_to_send` returned before `block_header` was
called goes out before it, and nothing may come between a header and its bytes.

Error cases: `receive_data` raises RemoteProtocolError for anything the protocol does not allow: a
message of the serving side, a request while the same block is owed already, a subscription number
used twice, more questions or subscriptions than limits.py allows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum, auto
from typing import TYPE_CHECKING

from .errors import LocalProtocolError, RemoteProtocolError
from .exchange_events import (
    GotTold,
    Greeted,
    NameWanted,
    PeerLeft,
    PeersTold,
    ServerEvent,
    Subscribed,
    Unsubscribed,
    VersionWanted,
    WantsTold,
    WorkQueued,
)
from .exchange_frames import FrameSplitter, SliceBudget
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
    Got,
    HaveAll,
    Hello,
    Message,
    NotFound,
    Peers,
    Reject,
    RejectReason,
    Request,
    Resolve,
    Subscribe,
    Unsubscribe,
    VersionHeader,
    Wants,
    decode_message,
    encode_message,
)
from .exchange_news import bitmap_messages, have_messages, peers_messages
from .framing import encode_length_prefixed
from .limits import (
    EXCHANGE_ASKED_MAX,
    EXCHANGE_QUEUE_MAX,
    EXCHANGE_REQUEST_BATCH,
    EXCHANGE_SUBSCRIPTIONS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    from .cid import Cid


class ServerState(Enum):
    """Where the stream is in its life."""

    GREETING = auto()
    OPEN = auto()
    CLOSED = auto()


class Wanted:
    """One queued request: a leaf by digest, or a loose block by CID."""

    __slots__ = ("cid", "digest", "withdrawn")

    def __init__(self, digest: bytes, cid: Cid | None) -> None:
        self.digest = digest
        self.cid = cid
        self.withdrawn: RejectReason | None = None
        """Why it need not be served any more: it should then be rejected, if nothing was sent."""


class ExchangeServer:
    """One stream on which the peer asks; see the module's theory of operation.

    Args:
        max_outstanding_bytes: told to the peer: what it may have asked for at once.
        max_requests: requests that may wait; more are rejected as busy.
    """

    def __init__(
        self, *, max_outstanding_bytes: int, max_requests: int = EXCHANGE_QUEUE_MAX
    ) -> None:
        self.state = ServerState.GREETING
        self.choked = False
        self._peer_is_ordered = False
        self.peer_tells = False
        """Whether the peer tells what it wants and gains."""
        self._max_requests = max_requests
        self._splitter = FrameSplitter()
        self._events: deque[ServerEvent] = deque()
        self._out: list[bytes] = []
        self._output_size = 0
        self._waiting: OrderedDict[bytes, Wanted] = OrderedDict()
        self._serving: dict[bytes, Wanted] = {}
        self._asked: set[int] = set()
        self._subscriptions: set[int] = set()
        features = (SWARM_FEATURE,)
        self._send(Hello(EXCHANGE_VERSION, features, max_outstanding_bytes, max_requests))

    @property
    def closed(self) -> bool:
        """Whether either side has said goodbye."""
        return self.state is ServerState.CLOSED

    @property
    def peer_is_shown(self) -> bool:
        """Whether the peer may be shown a few blocks at a time: it says what it wants."""
        return self.peer_tells and not self._peer_is_ordered

    # -- bytes out ------------------------------------------------------------------------------

    def data_to_send(self) -> bytes:
        """Return and forget the control bytes to send, in order."""
        data = b"".join(self._out)
        self._out.clear()
        self._output_size = 0
        return data

    @property
    def output_size(self) -> int:
        """Bytes that `data_to_send` would return. Stop reading above EXCHANGE_OUTPUT_MAX."""
        return self._output_size

    def _send(self, *messages: Message) -> None:
        for message in messages:
            frame = encode_length_prefixed(encode_message(message))
            self._out.append(frame)
            self._output_size += len(frame)

    # -- answers --------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Requests that wait to be taken by `next_wanted`."""
        return len(self._waiting)

    @property
    def owed(self) -> int:
        """Requests that are not answered yet."""
        return len(self._waiting) + len(self._serving)

    def next_wanted(self) -> Wanted | None:
        """Take the oldest request; answer it with `block_header` and bytes, or `reject`."""
        if not self._waiting:
            return None
        digest, wanted = self._waiting.popitem(last=False)
        self._serving[digest] = wanted
        return wanted

    def block_header(self, digest: bytes, length: int) -> bytes:
        """Answer a taken request: returns all bytes to send before the block's own `length`."""
        self._served(digest)
        self._send(BlockHeader(digest, length))
        return self.data_to_send()

    def reject(self, digest: bytes, reason: RejectReason) -> None:
        """Answer a taken request without its block."""
        self._served(digest)
        self._send(Reject((digest,), reason))

    def _served(self, digest: bytes) -> None:
        if digest not in self._serving:
            raise LocalProtocolError(f"block {digest.hex()[:16]} is not being served")
        del self._serving[digest]

    def send_version(self, request: int, document: bytes) -> None:
        """Answer VersionWanted or NameWanted with a signed document."""
        self._answered(request)
        self._send(VersionHeader(request, len(document)))
        self._out.append(document)
        self._output_size += len(document)

    def send_not_found(self, request: int) -> None:
        """Answer VersionWanted, NameWanted or Subscribed: nothing known.

        A subscription stays: what is gained later can still be told.
        """
        if request not in self._subscriptions:
            self._answered(request)
        self._send(NotFound(request))

    def send_nothing_here(self, subscription: int) -> None:
        """Tell a subscriber that this side gives nothing of the version, whatever it said before.

        Does nothing when it has just unsubscribed. What is gained later can still be told.
        """
        if subscription in self._subscriptions:
            self._send(NotFound(subscription))

    def _answered(self, request: int) -> None:
        if request not in self._asked:
            raise LocalProtocolError(f"question {request} was not asked")
        self._asked.remove(request)

    def send_have_all(self, subscription: int) -> None:
        """Tell a subscriber that this side has every block."""
        if subscription in self._subscriptions:
            self._send(HaveAll(subscription))

    def send_bits(self, subscription: int, bits: bytes) -> None:
        """Tell a subscriber the whole bitmap; runs of empty chunks are left out."""
        if subscription in self._subscriptions:
            self._send(*bitmap_messages(subscription, bits))

    def send_have(self, subscription: int, indices: Sequence[int]) -> None:
        """Tell a subscriber about blocks gained since."""
        if subscription in self._subscriptions:
            self._send(*have_messages(subscription, indices))

    def send_peers(self, root: Cid, records: Sequence[bytes]) -> None:
        """Tell the peer of others that have to do with a root, by their signed records."""
        if self.state is ServerState.OPEN:
            self._send(*peers_messages(root, records))

    def choke(self, *, choked: bool) -> None:
        """Serve the peer's requests for leaf blocks no longer, or again."""
        if choked is self.choked or self.state is ServerState.CLOSED:
            return
        self.choked = choked
        self._send(Choke(choked))
        if choked:
            refused = [digest for digest, wanted in self._waiting.items() if wanted.cid is None]
            for digest in refused:
                del self._waiting[digest]
            for wanted in self._serving.values():
                if wanted.cid is None:
                    wanted.withdrawn = RejectReason.CHOKED
            self._refuse(refused, RejectReason.CHOKED)

    def goodbye(self, code: GoodbyeCode = GoodbyeCode.DONE, reason: str = "") -> None:
        """Say that nothing more will be answered; the state becomes CLOSED."""
        if self.state is not ServerState.CLOSED:
            self._send(Goodbye(code, reason))
            self._close()

    # -- bytes in -------------------------------------------------------------------------------

    def next_event(self) -> ServerEvent | None:
        """Return the next event, or None until more bytes come."""
        return self._events.popleft() if self._events else None

    def receive_data(self, data: Buffer) -> None:
        """Take bytes of the stream.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
        """
        if self.state is ServerState.CLOSED:
            return
        self._splitter.feed(data)
        self.receive_more()

    @property
    def unread(self) -> bool:
        """Whether a part of what was received waits for `receive_more`."""
        return not self._splitter.used_up

    def receive_more(self) -> None:
        """Take the next slice of what was received; raises RemoteProtocolError."""
        budget = SliceBudget()
        while not self.closed and (frame := self._splitter.next_frame()) is not None:
            message = decode_message(frame)
            if message is not None:
                self._take(message)
            if not budget.spend(frame):
                break
        if self.closed:
            self._splitter.discard()

    def receive_eof(self) -> None:
        """Take the end of the stream.

        Raises:
            RemoteProtocolError: it ended inside a message.
        """
        if self.state is ServerState.CLOSED:
            return
        if self._splitter.mid_message:
            raise RemoteProtocolError("the exchange stream ended inside a message")
        self._leave(GoodbyeCode.DONE, "the stream ended")

    def _leave(self, code: GoodbyeCode, reason: str) -> None:
        self._close()
        self._events.append(PeerLeft(code, reason))

    def _close(self) -> None:
        self.state = ServerState.CLOSED
        self._waiting.clear()
        self._subscriptions.clear()

    def _take(self, message: Message) -> None:
        if self.state is ServerState.GREETING and not isinstance(message, (Hello, Goodbye)):
            raise RemoteProtocolError("the first exchange message is not HELLO")
        match message:
            case Request(digests):
                self._enqueue((digest, None) for digest in digests)
            case GetNodes(cids):
                self._enqueue((cid.digest, cid) for cid in cids)
            case Cancel(digests):
                self._cancel(digests)
            case GetVersion(request, manifest):
                self._ask(request)
                self._events.append(VersionWanted(request, manifest))
            case Resolve(request, publisher, name, version):
                self._ask(request)
                self._events.append(NameWanted(request, publisher, name, version))
            case Subscribe(subscription, root):
                self._subscribe(subscription, root)
            case Unsubscribe(subscription):
                if subscription in self._subscriptions:
                    self._subscriptions.remove(subscription)
                    self._events.append(Unsubscribed(subscription))
            case Wants(subscription, start, bits):
                if subscription in self._subscriptions:
                    self._events.append(WantsTold(subscription, start, bits))
            case Got(subscription, indices):
                if subscription in self._subscriptions:
                    self._events.append(GotTold(subscription, indices))
            case Peers(root, records):
                self._events.append(PeersTold(root, records))
            case Hello():
                if self.state is not ServerState.GREETING:
                    raise RemoteProtocolError("a second HELLO")
                self.state = ServerState.OPEN
                self.peer_tells = SWARM_FEATURE in message.features
                self._peer_is_ordered = ORDERED_FEATURE in message.features
                self._events.append(Greeted(message))
            case Goodbye(code, reason):
                self._leave(code, reason)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} from the asking side")

    def _enqueue(self, requests: Iterable[tuple[bytes, Cid | None]]) -> None:
        refused: dict[bytes, RejectReason] = {}
        idle = not self._waiting
        for digest, cid in requests:
            if digest in self._waiting or digest in self._serving or digest in refused:
                raise RemoteProtocolError(f"block {digest.hex()[:16]} asked for twice")
            if self.choked and cid is None:
                refused[digest] = RejectReason.CHOKED
            elif len(self._waiting) >= self._max_requests:
                refused[digest] = RejectReason.BUSY
            else:
                self._waiting[digest] = Wanted(digest, cid)
        for reason in (RejectReason.CHOKED, RejectReason.BUSY):
            self._refuse([each for each, why in refused.items() if why is reason], reason)
        if idle and self._waiting:
            self._events.append(WorkQueued())

    def _cancel(self, digests: Sequence[bytes]) -> None:
        # one that is being served is sent all the same if it has begun
        for digest in digests:
            if digest in self._serving:
                self._serving[digest].withdrawn = RejectReason.CANCELLED
        cancelled = [digest for digest in digests if self._waiting.pop(digest, None) is not None]
        self._refuse(cancelled, RejectReason.CANCELLED)

    def _refuse(self, digests: Sequence[bytes], reason: RejectReason) -> None:
        for at in range(0, len(digests), EXCHANGE_REQUEST_BATCH):
            self._send(Reject(tuple(digests[at : at + EXCHANGE_REQUEST_BATCH]), reason))

    def _ask(self, request: int) -> None:
        if request in self._asked or request in self._subscriptions:
            raise RemoteProtocolError(f"request number {request} used twice")
        if len(self._asked) >= EXCHANGE_ASKED_MAX:
            raise RemoteProtocolError(f"more than {EXCHANGE_ASKED_MAX} questions at once")
        self._asked.add(request)

    def _subscribe(self, subscription: int, root: Cid) -> None:
        if subscription in self._asked or subscription in self._subscriptions:
            raise RemoteProtocolError(f"request number {subscription} used twice")
        if len(self._subscriptions) >= EXCHANGE_SUBSCRIPTIONS_MAX:
            raise RemoteProtocolError(f"more than {EXCHANGE_SUBSCRIPTIONS_MAX} subscriptions")
        self._subscriptions.add(subscription)
        self._events.append(Subscribed(subscription, root))
