"""multistream-select on a stream: the machines of `sbp2p_protocol.multistream`, driven.

The opener sends header and proposal in one write and waits for the answer before any byte of the
application: optimistic application bytes could be read as further proposals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.multistream import Initiator, Responder

from .errors import Sbp2pError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .stream import Stream


class ProtocolUnsupportedError(Sbp2pError):
    """The peer speaks none of the protocols it was asked for."""

    exit_code = 4


async def propose(stream: Stream, protocols: Sequence[str]) -> str:
    """Agree on one of `protocols`, the most wanted first, on a stream that this side opened.

    Raises:
        ProtocolUnsupportedError: the peer refused them all.
        RemoteProtocolError: what came was no negotiation.
        trio.BrokenResourceError: the peer ended the stream instead.
    """
    machine = Initiator(protocols)
    selected = await _drive(stream, machine)
    if selected is None:
        raise ProtocolUnsupportedError(
            f"peer {stream.peer_id} does not speak {' or '.join(protocols)}",
            hint="it may run another version, or not serve what was asked of it",
        )
    return selected


async def answer(stream: Stream, supported: Callable[[str], bool]) -> str:
    """Agree on a protocol on a stream that the peer opened; errors as for `propose`."""
    machine = Responder(supported)
    if stream.has_data:  # then the header leaves with the echo, in one write
        machine.receive_data(await stream.receive_some())
    selected = await _drive(stream, machine)
    if selected is None:
        raise trio.BrokenResourceError("the negotiation failed")
    return selected


async def _drive(stream: Stream, machine: Initiator | Responder) -> str | None:
    while True:
        if data := machine.data_to_send():
            await stream.send_all(data)
        if machine.selected is not None or machine.failed:
            stream.give_back([machine.trailing()])
            return machine.selected
        received = await stream.receive_some()
        if not received:
            raise trio.BrokenResourceError("the peer ended the stream in the negotiation")
        machine.receive_data(received)
