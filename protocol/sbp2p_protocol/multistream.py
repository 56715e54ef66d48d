"""multistream-select 1.0: two peers agree on a protocol by name.

Theory of operation. Every message is a varint-length-prefixed line that ends in a newline. Each
side first sends the header `/multistream/1.0.0`, without waiting for the other's. The initiator
then proposes protocols, one at a time; the responder echoes the one it takes and answers `na` to
the others. What follows the echo belongs to the chosen protocol: `trailing` hands it over.

    initiator   WAIT_HEADER -> WAIT_ANSWER -> SELECTED | FAILED
    responder   WAIT_HEADER -> WAIT_PROPOSAL -> SELECTED

The initiator pipelines: header and first proposal leave in one write, which saves a round trip.
It never sends application bytes before the echo: a refused proposal would make the responder read
them as further proposals (go-multistream issue 20).

Errors, all `RemoteProtocolError`: a first message that is not the header, a message without its
newline, empty, above 1024 bytes or not UTF-8, an answer that was not asked for, and more than
`MULTISTREAM_PROPOSALS_MAX` proposals. A refusal of everything is no error: `failed` says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Final

from .errors import LocalProtocolError, RemoteProtocolError
from .framing import LengthPrefixedReader, encode_length_prefixed
from .limits import MULTISTREAM_MESSAGE_MAX, MULTISTREAM_PROPOSALS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

HEADER: Final = "/multistream/1.0.0"
NOT_AVAILABLE: Final = "na"
LIST: Final = "ls"


class NegotiationState(Enum):
    """Where a negotiation stands."""

    WAIT_HEADER = "wait header"
    WAIT_ANSWER = "wait answer"
    WAIT_PROPOSAL = "wait proposal"
    SELECTED = "selected"
    FAILED = "failed"
    BROKEN = "broken"


def encode_message(text: str) -> bytes:
    """Return `text` as one multistream message.

    Raises:
        LocalProtocolError: `text` is empty, holds a newline, or is too long to be sent.
    """
    line = text.encode() + b"\n"
    if not text or "\n" in text or len(line) > MULTISTREAM_MESSAGE_MAX:
        raise LocalProtocolError(f"not a protocol name: {text[:64]!r}")
    return encode_length_prefixed(line)


class _Negotiation(ABC):
    """What both sides share: the line reader, the outgoing bytes and the outcome."""

    __slots__ = ("_out", "_reader", "_selected", "_state", "_trailing")

    def __init__(self) -> None:
        self._state = NegotiationState.WAIT_HEADER
        self._reader = LengthPrefixedReader(MULTISTREAM_MESSAGE_MAX)
        self._out = bytearray(encode_message(HEADER))
        self._selected: str | None = None
        self._trailing = bytearray()

    @property
    def state(self) -> NegotiationState:
        """Where the negotiation stands."""
        return self._state

    @property
    def selected(self) -> str | None:
        """The agreed protocol, once there is one."""
        return self._selected

    @property
    def failed(self) -> bool:
        """Whether the negotiation ended without a protocol, by refusal or by an error."""
        return self._state in (NegotiationState.FAILED, NegotiationState.BROKEN)

    def data_to_send(self) -> bytes:
        """Return, once, the bytes to send now."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def trailing(self) -> bytes:
        """Return, once, the bytes that arrived after the negotiation."""
        rest = bytes(self._trailing)
        self._trailing.clear()
        return rest

    def receive_data(self, data: Buffer) -> None:
        """Take bytes from the peer, cut anywhere.

        Raises:
            RemoteProtocolError: They are no negotiation; every later call raises it too.
        """
        if self._state is NegotiationState.BROKEN:
            raise RemoteProtocolError("multistream negotiation already failed")
        if self._state is NegotiationState.SELECTED:
            self._trailing += data
        if self._state in (NegotiationState.SELECTED, NegotiationState.FAILED):
            return
        self._reader.feed(data)
        try:
            self._read_messages()
        except RemoteProtocolError:
            self._state = NegotiationState.BROKEN
            raise

    def _read_messages(self) -> None:
        while self._state not in (NegotiationState.SELECTED, NegotiationState.FAILED):
            line = self._reader.next()
            if line is None:
                return
            text = _decode_line(line)
            if self._state is not NegotiationState.WAIT_HEADER:
                self._on_message(text)
            elif text == HEADER:
                self._on_header()
            else:
                raise RemoteProtocolError(f"not a multistream peer: it began with {text[:64]!r}")
        self._trailing += self._reader.take_rest()

    @abstractmethod
    def _on_header(self) -> None:
        """The peer's header came."""

    @abstractmethod
    def _on_message(self, text: str) -> None:
        """A message after the header came."""


class Initiator(_Negotiation):
    """The side that proposes: the dialler, or the opener of a stream.

    Args:
        protocols: What to propose, most wanted first; not empty.
        pipelined: Send the first proposal with the header. Only a peer that cannot read two
            messages from one packet needs False.
    """

    __slots__ = ("_messages", "_proposed", "_protocols")

    def __init__(self, protocols: Sequence[str], *, pipelined: bool = True) -> None:
        super().__init__()
        if not protocols:
            raise LocalProtocolError("nothing to propose")
        self._protocols = tuple(protocols)
        self._messages = tuple(encode_message(protocol) for protocol in protocols)
        self._proposed = 0
        if pipelined:
            self._propose()

    def _propose(self) -> None:
        self._out += self._messages[self._proposed]
        self._proposed += 1

    def _on_header(self) -> None:
        if not self._proposed:
            self._propose()
        self._state = NegotiationState.WAIT_ANSWER

    def _on_message(self, text: str) -> None:
        if text == self._protocols[self._proposed - 1]:
            self._selected = text
            self._state = NegotiationState.SELECTED
        elif text != NOT_AVAILABLE:
            raise RemoteProtocolError(f"answer to a proposal that was not made: {text[:64]!r}")
        elif self._proposed < len(self._protocols):
            self._propose()
        else:
            self._state = NegotiationState.FAILED


class Responder(_Negotiation):
    """The side that chooses: the listener, or the acceptor of a stream.

    Args:
        supported: Says whether a protocol id is served here. Called with the peer's text.
    """

    __slots__ = ("_proposals", "_supported")

    def __init__(self, supported: Callable[[str], bool]) -> None:
        super().__init__()
        self._supported = supported
        self._proposals = 0

    def _on_header(self) -> None:
        self._state = NegotiationState.WAIT_PROPOSAL

    def _on_message(self, text: str) -> None:
        self._proposals += 1
        # `ls` is answered like any unknown protocol, as go does: nothing depends on the list.
        if text not in (HEADER, LIST, NOT_AVAILABLE) and self._supported(text):
            self._out += encode_message(text)
            self._selected = text
            self._state = NegotiationState.SELECTED
        elif self._proposals >= MULTISTREAM_PROPOSALS_MAX:
            raise RemoteProtocolError(f"{self._proposals} proposals and none that is served here")
        else:
            self._out += encode_message(NOT_AVAILABLE)


def _decode_line(line: bytes) -> str:
    if len(line) < 2 or line.find(b"\n") != len(line) - 1:
        raise RemoteProtocolError("multistream message is not one non-empty line")
    try:
        return line[:-1].decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("multistream message is not UTF-8") from None
