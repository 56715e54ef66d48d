"""Two connection machines joined by a fake link that the test cuts as it likes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.connection import Connection, ConnectionMachineConfig
from sbp2p_protocol.events import StreamData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.events import Event

    Cut = Callable[[bytes], Iterator[bytes]]

E = TypeVar("E")

DIALER_KEY = PrivateKey.from_seed(bytes(31) + b"\x01")
LISTENER_KEY = PrivateKey.from_seed(bytes(31) + b"\x02")
STRANGER_KEY = PrivateKey.from_seed(bytes(31) + b"\x03")


def whole(data: bytes) -> Iterator[bytes]:
    """Deliver everything at once."""
    yield data


def bytewise(data: bytes) -> Iterator[bytes]:
    """Deliver byte by byte."""
    for index in range(len(data)):
        yield data[index : index + 1]


def random_cuts(seed: int) -> Cut:
    """Deliver in pieces of random sizes, small ones more often."""
    rng = random.Random(seed)  # noqa: S311

    def cut(data: bytes) -> Iterator[bytes]:
        position = 0
        while position < len(data):
            size = int(2 ** rng.uniform(0, 18))
            yield data[position : position + size]
            position += size

    return cut


def drain(machine: Connection) -> list[Event]:
    """Take all events of a machine."""
    events = []
    while (event := machine.next_event()) is not None:
        events.append(event)
    return events


def take_bytes(machine: Connection) -> bytes:
    """Take all output of a machine."""
    return b"".join(machine.take_output())


def only(events: list[Event], kind: type[E]) -> list[E]:
    """Return the events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def stream_bytes(events: list[Event], stream_id: int) -> bytes:
    """Join what `events` brought for one stream."""
    data = [event.data for event in only(events, StreamData) if event.stream_id == stream_id]
    return b"".join(data)


class ConnectionPair:
    """A dialler and a listener. Time stands still unless the test moves `now`."""

    def __init__(
        self,
        *,
        cut: Cut = whole,
        dialer_config: ConnectionMachineConfig | None = None,
        listener_config: ConnectionMachineConfig | None = None,
        expected_peer: PeerId | None = LISTENER_KEY.peer_id,
    ) -> None:
        self.cut = cut
        self.now = 0.0
        self.dialer = Connection(
            identity=DIALER_KEY,
            initiator=True,
            expected_peer=expected_peer,
            config=dialer_config or ConnectionMachineConfig(),
            now=self.now,
        )
        self.listener = Connection(
            identity=LISTENER_KEY,
            initiator=False,
            expected_peer=None,
            config=listener_config or ConnectionMachineConfig(),
            now=self.now,
        )
        self.events: dict[Connection, list[Event]] = {self.dialer: [], self.listener: []}

    def peer_of(self, machine: Connection) -> Connection:
        """Return the other end."""
        return self.listener if machine is self.dialer else self.dialer

    def carry(self, source: Connection) -> int:
        """Carry the output of `source` to the other end; return how many bytes that was."""
        target = self.peer_of(source)
        data = take_bytes(source)
        for piece in self.cut(data):
            target.receive_data(piece, self.now)
            self.events[target] += drain(target)
        return len(data)

    def settle(self) -> None:
        """Carry everything both ways until the link is idle."""
        while self.carry(self.dialer) + self.carry(self.listener):
            pass
        for machine, events in self.events.items():
            events += drain(machine)

    def take(self, machine: Connection) -> list[Event]:
        """Return the events of one end since the last call."""
        events, self.events[machine] = self.events[machine], []
        return events

    def establish(self) -> None:
        """Run the upgrade and forget its events."""
        self.settle()
        assert self.dialer.established
        assert self.listener.established
        self.take(self.dialer)
        self.take(self.listener)
