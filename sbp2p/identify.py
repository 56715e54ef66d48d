"""identify, run on every connection: what this node says of itself, and what its peers say.

The answer holds the key, the listen addresses, the protocols served, the address at which the peer
is seen, and a peer record signed by this node's key. It is made anew when addresses or protocols
change, and then pushed to the peers that are connected.

What a peer says is checked against the id that it has proved. A peer that does not answer, or
answers nonsense, keeps its connection: some peers do not speak identify. Only what is another
peer's is worth a penalty, and that is the swarm's to give.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.identify import (
    IDENTIFY_PROTOCOL,
    IDENTIFY_PUSH_PROTOCOL,
    PROTOCOL_VERSION,
    IdentifyMessage,
    IdentifyReader,
)
from sbp2p_protocol.limits import IDENTIFY_ADDRESSES_MAX
from sbp2p_protocol.peer_record import seal_peer_record

from . import __version__, observe
from .errors import Sbp2pError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbp2p_keys.identity import PeerId, PrivateKey
    from sbp2p_protocol.multiaddr import Address

    from .connection import Connection
    from .handlers import HandlerTable
    from .stream import Stream

AGENT_VERSION = f"sbp2p/{__version__}"


class Identifier:
    """Both sides of identify for one node.

    Args:
        identity: this node's key.
        handlers: the protocols to tell of; identify itself is added to them.
        on_identified: told what a peer says, after each answer and each push.
        on_observed: told at which address the peer of a connection sees this node.
    """

    def __init__(
        self,
        identity: PrivateKey,
        handlers: HandlerTable,
        on_identified: Callable[[PeerId, IdentifyMessage], None],
        on_observed: Callable[[Connection, Address], None] = lambda *_: None,
    ) -> None:
        self._identity = identity
        self._handlers = handlers
        self._on_identified = on_identified
        self._on_observed = on_observed
        self._message = IdentifyMessage()
        handlers.handle(IDENTIFY_PROTOCOL, self._answer)
        handlers.handle(IDENTIFY_PUSH_PROTOCOL, self._take_push)
        self.update(())

    def update(self, addresses: Sequence[Address]) -> None:
        """Say from now on that this node listens at `addresses`, and serves what it now serves."""
        listening = tuple(
            address.without_peer().to_bytes() for address in addresses[:IDENTIFY_ADDRESSES_MAX]
        )
        self._message = IdentifyMessage(
            public_key=self._identity.public_key.to_protobuf(),
            listen_addresses=listening,
            protocols=self._handlers.protocols(),
            protocol_version=PROTOCOL_VERSION,
            agent_version=AGENT_VERSION,
            # go counts nanoseconds too: a node that changed libraries keeps its order
            signed_peer_record=seal_peer_record(self._identity, time.time_ns(), listening),
        )

    def message_for(self, connection: Connection) -> IdentifyMessage:
        """Return what the peer of `connection` is told."""
        observed = connection.remote_address.to_bytes()
        return IdentifyMessage(observed_address=observed).updated_by(self._message)

    async def ask(self, connection: Connection, timeout_s: float) -> None:
        """Ask the peer who it is; a failure is logged and no more."""
        try:
            with trio.fail_after(timeout_s):
                async with await connection.open_stream([IDENTIFY_PROTOCOL]) as stream:
                    message = await _read(stream)
        except _FAILURES as error:
            observe.report_stream_failed(f"identify of {connection.peer_id}", error)
        else:
            self._told(connection, message)

    async def push(self, connection: Connection, timeout_s: float) -> None:
        """Tell the peer what has changed; a failure is logged and no more."""
        try:
            with trio.fail_after(timeout_s):
                async with await connection.open_stream([IDENTIFY_PUSH_PROTOCOL]) as stream:
                    await stream.send_all(self.message_for(connection).encode())
        except _FAILURES as error:
            observe.report_stream_failed(f"identify push to {connection.peer_id}", error)

    async def _answer(self, stream: Stream) -> None:
        await stream.send_all(self.message_for(stream.connection).encode())

    async def _take_push(self, stream: Stream) -> None:
        message = await _read(stream)
        self._told(stream.connection, message)

    def _told(self, connection: Connection, message: IdentifyMessage) -> None:
        self._on_identified(connection.peer_id, message)
        if (seen := message.observed) is not None:
            self._on_observed(connection, seen)


_FAILURES = (
    Sbp2pError,
    RemoteProtocolError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
)


async def _read(stream: Stream) -> IdentifyMessage:
    reader = IdentifyReader()
    while data := await stream.receive_some():
        reader.receive_data(data)
    message = reader.finish()
    message.checked_against(stream.peer_id)
    return message
