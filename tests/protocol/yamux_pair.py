"""Two yamux sessions joined by a link that the test opens and shuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p_protocol.events import StreamData
from sbp2p_protocol.yamux import YamuxSession
from sbp2p_protocol.yamux_streams import YamuxConfig

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from sbp2p_protocol.events import Event


class YamuxEnd:
    """A session, what it has written and not yet delivered, and what it has said."""

    def __init__(self, *, initiator: bool, config: YamuxConfig) -> None:
        self.session = YamuxSession(initiator=initiator, config=config, now=0.0)
        self.wire = bytearray()

    def open_stream(self) -> int:
        return self.session.open_stream()

    def send(self, stream_id: int, data: Buffer) -> int:
        parts: list[Buffer] = []
        accepted = self.session.send(stream_id, data, parts)
        self.wire += b"".join(bytes(part) for part in parts)
        return accepted

    def flush(self) -> None:
        self.wire += self.session.take_control()

    def events(self) -> list[Event]:
        events = []
        while (event := self.session.next_event()) is not None:
            events.append(event)
        return events


class YamuxPair:
    """`a` dialled, `b` listened."""

    def __init__(self, config: YamuxConfig | None = None) -> None:
        self.config = config or YamuxConfig()
        self.a = YamuxEnd(initiator=True, config=self.config)
        self.b = YamuxEnd(initiator=False, config=self.config)
        self.now = 0.0

    def peer_of(self, end: YamuxEnd) -> YamuxEnd:
        return self.b if end is self.a else self.a

    def deliver(self, source: YamuxEnd, size: int | None = None) -> None:
        """Carry `size` bytes, or everything, from `source` to the other end."""
        source.flush()
        piece = bytes(source.wire[:size])
        del source.wire[: len(piece)]
        self.peer_of(source).session.receive_data(piece, self.now)

    def settle(self) -> None:
        """Carry everything both ways until the link is idle."""
        while True:
            self.a.flush()
            self.b.flush()
            if not self.a.wire and not self.b.wire:
                return
            self.deliver(self.a)
            self.deliver(self.b)


def payload(events: list[Event], stream_id: int) -> bytes:
    """Join what `events` brought for one stream."""
    return b"".join(
        bytes(event.data)
        for event in events
        if isinstance(event, StreamData) and event.stream_id == stream_id
    )
