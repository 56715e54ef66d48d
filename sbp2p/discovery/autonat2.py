"""AutoNAT's second version, both sides: a dial-back that brings a number with it.

`NonceServer` answers requests under the same `DialBackPolicy` as the first version, but dials one
address only, and only at the host that the request comes from: it never has to ask for data first.
`DialBackAsker` asks, and takes the dial-backs; a server that says it got through and did not is
found out.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import trio

from sbp2p.errors import PeerMisbehavedError, PeerUnreachableError, Sbp2pError
from sbp2p.transport import DialError
from sbp2p_protocol.autonat import DialRequest, DialResponse, DialStatus
from sbp2p_protocol.autonat2 import (
    DIAL_BACK_PROTOCOL,
    DIAL_REQUEST_PROTOCOL,
    Data,
    DataRequest,
    DialOutcome,
    NonceRequest,
    NonceResponse,
    RequestStatus,
    decode_dial_back,
    decode_message,
    decode_thanks,
    encode_dial_back,
    encode_message,
    encode_thanks,
)
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.limits import (
    AUTONAT_ADDRESSES_MAX,
    AUTONAT_DIAL_DATA_CHUNK,
    AUTONAT_TWO_MESSAGE_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.connection import Connection
    from sbp2p.stream import Stream
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.multiaddr import Address

    from .autonat import DialBackServer

_LOST = (trio.BrokenResourceError, trio.ClosedResourceError)
_STATUSES = {
    DialStatus.BAD_REQUEST: RequestStatus.REQUEST_REJECTED,
    DialStatus.DIAL_REFUSED: RequestStatus.DIAL_REFUSED,
}


class NonceServer:
    """The serving side; shares its policy and its counters with the first version's."""

    def __init__(self, swarm: Swarm, server: DialBackServer) -> None:
        self._swarm = swarm
        self._server = server
        swarm.handle(DIAL_REQUEST_PROTOCOL, self._serve)

    async def _serve(self, stream: Stream) -> None:
        with trio.fail_after(3 * self._server.timeout_s):
            request = decode_message(await _Frames(stream).next())
            if not isinstance(request, NonceRequest):
                raise RemoteProtocolError("an autonat stream that does not begin with a request")
            response = await self._respond(stream, request)
            await stream.send_all(encode_message(response))

    async def _respond(self, stream: Stream, request: NonceRequest) -> NonceResponse:
        peer_id = stream.peer_id
        known = tuple(each for each in request.addresses if each is not None)
        with self._server.turn(stream, DialRequest(peer_id, known)) as verdict:
            if isinstance(verdict, DialResponse):
                status = _STATUSES.get(verdict.status, RequestStatus.INTERNAL_ERROR)
                return NonceResponse(status)
            bare = [each and each.without_peer() for each in request.addresses]
            outcome = await self._dial(verdict[0], peer_id, request.nonce)
            return NonceResponse(RequestStatus.OK, bare.index(verdict[0]), outcome)

    async def _dial(self, address: Address, peer_id: PeerId, nonce: int) -> DialOutcome:
        outcome = DialOutcome.DIAL_ERROR

        async def say(connection: Connection) -> None:
            nonlocal outcome
            outcome = DialOutcome.DIAL_BACK_ERROR
            try:
                async with await connection.open_stream([DIAL_BACK_PROTOCOL]) as stream:
                    await stream.send_all(encode_dial_back(nonce))
                    await stream.send_eof()
                    if decode_thanks(await _Frames(stream).next()):
                        outcome = DialOutcome.OK
            except (*_LOST, RemoteProtocolError, Sbp2pError):
                return  # it was reached, and did not take it

        with trio.move_on_after(self._server.timeout_s):
            try:
                await self._swarm.probe.visit(address, peer_id, say)
            except DialError:
                return DialOutcome.DIAL_ERROR
        return outcome


class DialBackAsker:
    """The asking side of one node."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._told: dict[int, trio.Event] = {}
        """Nonces that are out, and whether they have come back."""

    def serve(self) -> None:
        """Take dial-backs from now on."""
        self._swarm.handle(DIAL_BACK_PROTOCOL, self._take)

    async def ask(
        self, peer_id: PeerId, addresses: Sequence[Address], timeout_s: float
    ) -> DialResponse:
        """Have a connected peer dial this node; return the answer in the first version's words.

        Raises:
            PeerUnreachableError: the peer did not answer.
            PeerMisbehavedError: its answer is none, or claims a dial-back that did not come.
            ProtocolUnsupportedError: it does not dial back.
        """
        nonce = secrets.randbits(64)
        asked = [each.without_peer() for each in addresses][:AUTONAT_ADDRESSES_MAX]
        came = self._told[nonce] = trio.Event()
        try:
            with trio.fail_after(timeout_s):
                response = await self._request(peer_id, NonceRequest(tuple(asked), nonce))
        except trio.TooSlowError:
            raise PeerUnreachableError(
                f"peer {peer_id} did not answer within {timeout_s:g} s"
            ) from None
        except RemoteProtocolError as error:
            raise PeerMisbehavedError(f"peer {peer_id}: {error}") from error
        except _LOST as error:
            raise PeerUnreachableError(f"peer {peer_id} ended the stream: {error}") from error
        finally:
            del self._told[nonce]
        if response.status is not RequestStatus.OK:
            return DialResponse(DialStatus.DIAL_REFUSED, response.status.name.lower())
        if response.index >= len(asked):
            raise PeerMisbehavedError(f"peer {peer_id} dialled an address that it was not asked to")
        address = asked[response.index]
        if response.outcome is not DialOutcome.OK:
            return DialResponse(DialStatus.DIAL_ERROR, response.outcome.name.lower(), address)
        if not came.is_set():
            raise PeerMisbehavedError(f"peer {peer_id} claims a dial-back that did not come")
        return DialResponse(DialStatus.OK, "", address)

    async def _request(self, peer_id: PeerId, request: NonceRequest) -> NonceResponse:
        async with await self._swarm.open_stream(peer_id, [DIAL_REQUEST_PROTOCOL]) as stream:
            await stream.send_all(encode_message(request))
            frames = _Frames(stream)
            paid = False
            while True:
                match decode_message(await frames.next()):
                    case NonceResponse() as response:
                        return response
                    case DataRequest(_, count) if not paid:
                        paid = True
                        await _send_data(stream, count)
                    case _:
                        raise RemoteProtocolError("not an answer to an autonat request")

    async def _take(self, stream: Stream) -> None:
        """Take a dial-back, whoever brings it: servers may dial under another id."""
        came = self._told.get(decode_dial_back(await _Frames(stream).next()))
        if came is None:
            raise RemoteProtocolError("a dial-back that was not asked for")
        came.set()
        await stream.send_all(encode_thanks())


async def _send_data(stream: Stream, count: int) -> None:
    while count > 0:
        size = min(count, AUTONAT_DIAL_DATA_CHUNK)
        await stream.send_all(encode_message(Data(size)))
        count -= size


class _Frames:
    """The messages of one stream, one after the other."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._reader = LengthPrefixedReader(AUTONAT_TWO_MESSAGE_MAX)

    async def next(self) -> bytes:
        """Return the next message without its length prefix."""
        while (frame := self._reader.next()) is None:
            data = await self._stream.receive_some()
            if not data:
                raise trio.BrokenResourceError("the stream ended before the message did")
            self._reader.feed(data)
        return frame
