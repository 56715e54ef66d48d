"""AutoNAT: asks peers to dial this node back, and dials back those that ask.

`serve_autonat` answers requests by `DialBackPolicy`; a dial-back is a probe, which enters no table
and is done with once the requester has proved its id. `ask_to_dial_back` puts one question to one
peer. When to ask whom, and what the answers mean, is `sbp2p_protocol.reachability`'s to say.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from sbp2p.errors import PeerMisbehavedError, PeerUnreachableError
from sbp2p.transport import DialError
from sbp2p_protocol.autonat import (
    AUTONAT_PROTOCOL,
    DialBackPolicy,
    DialRequest,
    DialResponse,
    DialStatus,
)
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.limits import AUTONAT_MESSAGE_MAX, DIAL_BACKS_AT_ONCE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sbp2p.config import DiscoveryConfig
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.multiaddr import Address


def serve_autonat(swarm: Swarm, config: DiscoveryConfig) -> DialBackServer:
    """Dial back peers that ask, from now on."""
    server = DialBackServer(swarm, config)
    swarm.handle(AUTONAT_PROTOCOL, server.serve)
    return server


class DialBackServer:
    """The serving side, and its counters."""

    def __init__(self, swarm: Swarm, config: DiscoveryConfig) -> None:
        self.dialled = 0
        self.refused = 0
        self._swarm = swarm
        self.timeout_s = config.dial_back_timeout_s
        self._policy = DialBackPolicy(
            requests_max=config.dial_backs_per_minute,
            total_max=config.dial_backs_per_minute_total,
            allow_private=config.dial_back_private,
        )
        self._busy: set[PeerId] = set()

    async def serve(self, stream: Stream) -> None:
        """Answer one request."""
        with trio.fail_after(2 * self.timeout_s):
            try:
                request = DialRequest.decode(await _receive(stream))
            except RemoteProtocolError as error:
                await stream.send_all(DialResponse(DialStatus.BAD_REQUEST, str(error)).encode())
                return
            response = await self._respond(stream, request)
            await stream.send_all(response.encode())

    async def _respond(self, stream: Stream, request: DialRequest) -> DialResponse:
        with self.turn(stream, request) as verdict:
            if isinstance(verdict, DialResponse):
                return verdict
            return await self._dial(verdict, stream.peer_id)

    @contextmanager
    def turn(
        self, stream: Stream, request: DialRequest
    ) -> Iterator[Sequence[Address] | DialResponse]:
        """Yield what may be dialled for a peer while the block runs, or the answer that refuses."""
        peer_id = stream.peer_id
        verdict: Sequence[Address] | DialResponse
        if peer_id in self._busy or len(self._busy) >= DIAL_BACKS_AT_ONCE_MAX:
            verdict = DialResponse(DialStatus.DIAL_REFUSED, "busy")
        else:
            remote = stream.connection.remote_address
            verdict = self._policy.judge(request, peer_id, remote, trio.current_time())
        if isinstance(verdict, DialResponse):
            self.refused += 1
            yield verdict
            return
        self._busy.add(peer_id)
        self.dialled += 1
        try:
            yield verdict
        finally:
            self._busy.discard(peer_id)

    async def _dial(self, addresses: Sequence[Address], peer_id: PeerId) -> DialResponse:
        reason = f"no answer within {self.timeout_s:g} s"
        with trio.move_on_after(self.timeout_s):
            for address in addresses:
                try:
                    await self._swarm.probe(address, peer_id)
                except DialError as error:
                    reason = str(error)
                else:
                    return DialResponse(DialStatus.OK, address=address)
        return DialResponse(DialStatus.DIAL_ERROR, reason)


async def ask_to_dial_back(
    swarm: Swarm, peer_id: PeerId, addresses: Sequence[Address], timeout_s: float
) -> DialResponse:
    """Have a connected peer dial this node.

    Raises:
        PeerUnreachableError: the peer did not answer.
        PeerMisbehavedError: what it answered is no answer.
        ProtocolUnsupportedError: it does not dial back.
    """
    request = DialRequest(swarm.peer_id, tuple(each.without_peer() for each in addresses))
    try:
        with trio.fail_after(timeout_s):
            async with await swarm.open_stream(peer_id, [AUTONAT_PROTOCOL]) as stream:
                await stream.send_all(request.encode())
                return DialResponse.decode(await _receive(stream))
    except trio.TooSlowError:
        raise PeerUnreachableError(
            f"peer {peer_id} did not answer within {timeout_s:g} s"
        ) from None
    except RemoteProtocolError as error:
        raise PeerMisbehavedError(f"peer {peer_id}: {error}") from error
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise PeerUnreachableError(f"peer {peer_id} ended the stream: {error}") from error


async def _receive(stream: Stream) -> bytes:
    reader = LengthPrefixedReader(AUTONAT_MESSAGE_MAX)
    while True:
        if (frame := reader.next()) is not None:
            return frame
        data = await stream.receive_some()
        if not data and not reader.buffered:
            raise trio.BrokenResourceError("without a word")
        if not data:
            raise RemoteProtocolError("the stream ended before the message did")
        reader.feed(data)
