"""Targets of what comes first on a connection: frames, negotiation, addresses, small protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbp2p_keys.signing import SignedEnvelope
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader, encode_length_prefixed
from sbp2p_protocol.identify import IdentifyMessage, IdentifyReader
from sbp2p_protocol.limits import (
    ADDRESS_MAX,
    IDENTIFY_ADDRESSES_MAX,
    IDENTIFY_MESSAGE_MAX,
    IDENTIFY_PROTOCOLS_MAX,
    MULTISTREAM_MESSAGE_MAX,
    MULTISTREAM_PROPOSALS_MAX,
    PEER_RECORD_ADDRESSES_MAX,
    PERF_DOWNLOAD_MAX,
)
from sbp2p_protocol.multiaddr import Address, BadAddressError, address_from_bytes, parse_address
from sbp2p_protocol.multistream import HEADER, Initiator, Responder, encode_message
from sbp2p_protocol.peer_record import (
    PEER_RECORD_DOMAIN,
    PEER_RECORD_TYPE,
    open_peer_record,
    seal_peer_record,
)
from sbp2p_protocol.perf import HEADER_SIZE, PerfClient, PerfServer, encode_perf_request
from sbp2p_protocol.ping import PING_SIZE, PingClient, PingServer

from .corpus import KEYS
from .engine import Target
from .expect import (
    Refused,
    attempt,
    error_text,
    expect,
    expect_equal,
    same_for_all_cuts,
    text_of,
)
from .structure import blind, frames, protobuf

if TYPE_CHECKING:
    from collections.abc import Callable

# -- frames ----------------------------------------------------------------------------------------

FRAME_MAX: Final = 300


def _read_frames(pieces: list[bytes]) -> tuple[list[bytes], str]:
    """Return the frames of a stream, and how it ended."""
    reader = LengthPrefixedReader(FRAME_MAX)
    found: list[bytes] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (frame := reader.next()) is not None:
                found.append(frame)
            expect(reader.buffered <= FRAME_MAX + 2, f"{reader.buffered} bytes held")
        reader.finish()
    except RemoteProtocolError as error:
        reader.feed(b"\0" * 9)
        expect(isinstance(attempt(RemoteProtocolError, reader.next), Refused), "it goes on")
        return found, error_text(error)
    return found, ""


def _framing(data: bytes) -> None:
    found, error = same_for_all_cuts(_read_frames, data)
    encoded = b"".join(map(encode_length_prefixed, found))
    expect(data.startswith(encoded), "frames that were not sent")
    expect(bool(error) or encoded == data, "bytes are missing")


def _frame_seeds() -> list[bytes]:
    bodies = (b"", b"a", bytes(127), bytes(128), bytes(FRAME_MAX), bytes(FRAME_MAX + 1))
    return [b"".join(map(encode_length_prefixed, bodies[: count + 1])) for count in range(6)]


# -- addresses -------------------------------------------------------------------------------------

ADDRESSES: Final = (
    "/ip4/192.0.2.1/tcp/4001",
    "/ip6/2001:db8::1/tcp/4001",
    "/ip6zone/eth0/ip6/fe80::1/tcp/4001",
    "/dns/example.org/tcp/443",
    "/dns4/example.org/tcp/4001/ws",
    "/dnsaddr/bootstrap.example.org",
    "/memory/7",
    "/ip4/192.0.2.1/udp/4001/quic-v1/webtransport",
    "/unix/tmp/socket",
    f"/ip4/192.0.2.1/tcp/4001/p2p/{KEYS[0].peer_id}",
    f"/ip4/192.0.2.1/tcp/4001/p2p/{KEYS[0].peer_id}/p2p-circuit/p2p/{KEYS[1].peer_id}",
    f"/memory/1/ipfs/{KEYS[1].peer_id.to_cid_text()}/",
)


def _check_address(address: Address) -> None:
    expect(0 < len(address.data) <= ADDRESS_MAX, "an address that is too long")
    expect_equal(address_from_bytes(address.to_bytes()), address, "binary form")
    expect_equal(parse_address(address.text), address, "text form")
    expect_equal(parse_address(address.text).text, address.text, "printed text")
    expect(address.text.isprintable() or not address.is_dialable, "unprintable and dialable")
    expect(0 <= address.port < 1 << 64, "port")
    if address.is_dialable and address.kind != "memory":
        expect(bool(address.host) and address.port < 65536, f"cannot be dialled: {address.text!r}")
    expect(address.peer_id is None or str(address.peer_id) in address.text, "peer id")
    other = attempt(BadAddressError, address.with_peer, KEYS[2].peer_id)
    if not isinstance(other, Refused):
        expect_equal(other.peer_id, KEYS[2].peer_id, "another peer")
    attempt(BadAddressError, address.without_peer)


def _multiaddr(data: bytes) -> None:
    address = attempt(RemoteProtocolError, address_from_bytes, data)
    if not isinstance(address, Refused):
        expect_equal(address.to_bytes(), data, "encoded again")
        _check_address(address)


def _multiaddr_text(data: bytes) -> None:
    address = attempt(BadAddressError, parse_address, text_of(data))
    if not isinstance(address, Refused):
        _check_address(address)


_ADDRESS_TOKENS: Final = tuple(
    f"/{name}".encode()
    for name in (
        "ip4", "ip6", "tcp", "udp", "p2p", "ipfs", "dns", "dnsaddr", "ip6zone", "ipcidr", "unix",
        "onion3", "garlic64", "certhash", "http-path", "tls", "sni", "ws", "memory", "cid", "http",
        "p2p-circuit", "webrtc-direct", "ip4/1.2.3.4", "tcp/1", "%2f", "/",
    )
)  # fmt: skip

# -- negotiation -----------------------------------------------------------------------------------

PROTOCOLS: Final = ("/a/1.0.0", "/b/1.0.0", "/yamux/1.0.0")


def _negotiate(machine: Initiator | Responder, pieces: list[bytes]) -> tuple[object, ...]:
    out = bytearray(machine.data_to_send())
    trailing = b""
    error = ""
    try:
        for piece in pieces:
            machine.receive_data(piece)
            out += machine.data_to_send()
            trailing += machine.trailing()
    except RemoteProtocolError as raised:
        error = error_text(raised)
        out += machine.data_to_send()
        expect(machine.failed, "an error and not failed")
        expect(
            isinstance(attempt(RemoteProtocolError, machine.receive_data, b""), Refused), "error"
        )
    most = (MULTISTREAM_PROPOSALS_MAX + 2) * (len(HEADER) + 10)
    expect(len(out) <= most, f"{len(out)} bytes of answers")
    expect(machine.selected is None or machine.selected in PROTOCOLS, "nobody offered that")
    expect(machine.selected is None or not machine.failed, "selected and failed")
    # what follows a refusal of everything is dropped, however much of it was in one piece
    return (
        machine.selected,
        machine.failed,
        bytes(out),
        error,
        trailing if machine.selected else b"",
    )


def _initiator(data: bytes) -> None:
    same_for_all_cuts(lambda pieces: _negotiate(Initiator(PROTOCOLS), pieces), data)
    same_for_all_cuts(
        lambda pieces: _negotiate(Initiator(PROTOCOLS, pipelined=False), pieces), data
    )


def _responder(data: bytes) -> None:
    same_for_all_cuts(lambda pieces: _negotiate(Responder(PROTOCOLS.__contains__), pieces), data)


def _lines(*texts: str) -> bytes:
    return b"".join(map(encode_message, texts))


def _multistream_seeds() -> list[bytes]:
    refused = ["na"] * len(PROTOCOLS)
    return [
        _lines(HEADER, PROTOCOLS[0]) + b"trailing",
        _lines(HEADER, "na", PROTOCOLS[1]),
        _lines(HEADER, *refused),
        _lines(HEADER, "ls", "/other/1.0.0", PROTOCOLS[2]) + bytes(40),
        _lines(HEADER, *["/x"] * MULTISTREAM_PROPOSALS_MAX),
        _lines("/" + "x" * (MULTISTREAM_MESSAGE_MAX - 2)),
    ]


# -- identify and peer records ---------------------------------------------------------------------


def _identify(data: bytes) -> None:
    def run(pieces: list[bytes]) -> IdentifyMessage | Refused:
        reader = IdentifyReader()
        for piece in pieces:
            refused = attempt(RemoteProtocolError, reader.receive_data, piece)
            if refused is not None:
                return refused
        return attempt(RemoteProtocolError, reader.finish)

    _check_identify(same_for_all_cuts(run, data))
    _check_identify(attempt(RemoteProtocolError, IdentifyMessage.decode, data))


def _check_identify(message: IdentifyMessage | Refused) -> None:
    if isinstance(message, Refused):
        return
    expect(len(message.listen_addresses) <= IDENTIFY_ADDRESSES_MAX, "too many addresses")
    expect(len(message.protocols) <= IDENTIFY_PROTOCOLS_MAX, "too many protocols")
    expect(len(message.addresses) <= len(message.listen_addresses), "addresses from nowhere")
    expect(message.observed is None or message.observed_address is not None, "observed")
    for key in KEYS[:2]:
        attempt(RemoteProtocolError, message.checked_against, key.peer_id)
    encoded = attempt(LocalProtocolError, message.encode)
    if not isinstance(encoded, Refused):
        reader = IdentifyReader()
        reader.receive_data(encoded)
        again = reader.finish()
        # addresses are left out until it fits; everything else stays
        kept = message.listen_addresses[: len(again.listen_addresses)]
        expect_equal(again.listen_addresses, kept, "addresses")
        expect_equal(again.protocols, message.protocols, "protocols")
        expect_equal(again.updated_by(message), message, "read again")


def _identify_seeds() -> list[bytes]:
    addresses = tuple(parse_address(text).to_bytes() for text in ADDRESSES)
    full = IdentifyMessage(
        public_key=KEYS[0].public_key.to_protobuf(),
        listen_addresses=addresses,
        protocols=("/ipfs/id/1.0.0", "/ipfs/ping/1.0.0"),
        observed_address=addresses[0],
        protocol_version="ipfs/0.1.0",
        agent_version="sbp2p/0.1.0",
        signed_peer_record=seal_peer_record(KEYS[0], 1, addresses[:2]),
    )
    small = IdentifyMessage(protocols=("/x",), agent_version="y")
    many = IdentifyMessage(listen_addresses=addresses[:1] * 50, protocols=("/p",) * 300)
    return [full.encode(), small.encode() + full.encode(), many.encode(), small.encode() * 10]


def _identify_body_seeds() -> list[bytes]:
    return [*_identify_seeds(), *(seed[2:] for seed in _identify_seeds())]


def _peer_record(data: bytes) -> None:
    sealed = SignedEnvelope.seal(KEYS[0], PEER_RECORD_DOMAIN, PEER_RECORD_TYPE, data).to_bytes()
    for envelope in (data, sealed):
        record = attempt(RemoteProtocolError, open_peer_record, envelope)
        if isinstance(record, Refused):
            continue
        expect(len(record.addresses) <= PEER_RECORD_ADDRESSES_MAX, "too many addresses")
        expect(all(0 < len(one) <= ADDRESS_MAX for one in record.addresses), "address length")
        expect(0 <= record.seq < 1 << 64, "seq")
        expect(envelope is data or record.peer_id == KEYS[0].peer_id, "a record of somebody else")


def _peer_record_seeds() -> list[bytes]:
    addresses = tuple(parse_address(text).to_bytes() for text in ADDRESSES[:3])
    sealed = [seal_peer_record(key, seq, addresses) for key in KEYS for seq in (0, 2**64 - 1)]
    return [*sealed, *(SignedEnvelope.from_bytes(one).payload for one in sealed)]


# -- ping and perf ---------------------------------------------------------------------------------

_PAYLOAD: Final = bytes(range(PING_SIZE))


def _ping(data: bytes) -> None:
    def serve(pieces: list[bytes]) -> bytes:
        server = PingServer()
        return b"".join(server.receive_data(piece) for piece in pieces)

    def ask(pieces: list[bytes]) -> str:
        client = PingClient()
        client.start(_PAYLOAD, 1.0)
        for piece in pieces:
            rtt_s = attempt(RemoteProtocolError, client.receive_data, piece, 2.0)
            if isinstance(rtt_s, Refused):
                return rtt_s.message
            expect(rtt_s in (None, 1.0), f"round trip {rtt_s}")
        return ""

    whole = len(data) // PING_SIZE * PING_SIZE
    expect_equal(same_for_all_cuts(serve, data), data[:whole], "echo")
    error = same_for_all_cuts(ask, data)
    expect_equal(bool(error), not _PAYLOAD.startswith(data), "a wrong echo is found")


def _perf(data: bytes) -> None:
    def serve(pieces: list[bytes]) -> tuple[str, int, int]:
        server = PerfServer()
        for piece in pieces:
            refused = attempt(RemoteProtocolError, server.receive_data, piece)
            if refused is not None:
                return refused.message, 0, 0
        wanted = attempt(RemoteProtocolError, server.finish)
        if isinstance(wanted, Refused):
            return wanted.message, 0, 0
        return "", wanted, server.uploaded_bytes

    error, wanted, uploaded = same_for_all_cuts(serve, data)
    if not error:
        expect(wanted <= PERF_DOWNLOAD_MAX, f"{wanted} bytes wanted")
        expect_equal(uploaded, len(data) - HEADER_SIZE, "uploaded")

    def ask(pieces: list[bytes]) -> str:
        client = PerfClient(PING_SIZE)
        calls: list[Callable[[], None]] = []
        calls += [lambda piece=piece: client.receive_data(piece) for piece in pieces]  # type: ignore[misc]
        for call in (*calls, client.finish):
            refused = attempt(RemoteProtocolError, call)
            if refused is not None:
                return "refused"
        return ""

    expect_equal(same_for_all_cuts(ask, data) == "", len(data) == PING_SIZE, "size of the download")


def _perf_seeds() -> list[bytes]:
    sizes = (0, 1, PERF_DOWNLOAD_MAX)
    return [encode_perf_request(size) + bytes(size % 100) for size in sizes] + [b"\xff" * 8, b"\0"]


TARGETS: Final = (
    Target(
        name="framing",
        modules=("sbp2p_protocol.framing",),
        check=_framing,
        seeds=_frame_seeds,
        mutations=(frames(blind),),
        max_size=1024,
        test_runs=80,
    ),
    Target(
        name="multiaddr",
        modules=("sbp2p_protocol.multiaddr", "sbp2p_protocol.usual_address"),
        check=_multiaddr,
        seeds=lambda: [parse_address(text).to_bytes() for text in ADDRESSES],
        max_size=1100,
    ),
    Target(
        name="multiaddr_text",
        modules=("sbp2p_protocol.multiaddr", "sbp2p_protocol.usual_address"),
        check=_multiaddr_text,
        seeds=lambda: [text.encode() for text in ADDRESSES],
        tokens=_ADDRESS_TOKENS,
        max_size=1100,
    ),
    Target(
        name="multistream_initiator",
        modules=("sbp2p_protocol.multistream",),
        check=_initiator,
        seeds=_multistream_seeds,
        mutations=(frames(blind),),
        max_size=2048,
        test_runs=80,
    ),
    Target(
        name="multistream_responder",
        modules=("sbp2p_protocol.multistream",),
        check=_responder,
        seeds=_multistream_seeds,
        mutations=(frames(blind),),
        max_size=2048,
        test_runs=80,
    ),
    Target(
        name="identify",
        modules=("sbp2p_protocol.identify",),
        check=_identify,
        seeds=_identify_body_seeds,
        mutations=(frames(protobuf), protobuf),
        max_size=2 * IDENTIFY_MESSAGE_MAX,
        test_runs=50,
    ),
    Target(
        name="peer_record",
        modules=("sbp2p_protocol.peer_record",),
        check=_peer_record,
        seeds=_peer_record_seeds,
        mutations=(protobuf,),
    ),
    Target(
        name="ping",
        modules=("sbp2p_protocol.ping",),
        check=_ping,
        seeds=lambda: [_PAYLOAD, _PAYLOAD[:7], _PAYLOAD * 3, b"\0"],
        tokens=(_PAYLOAD,),
        max_size=256,
    ),
    Target(
        name="perf",
        modules=("sbp2p_protocol.perf",),
        check=_perf,
        seeds=_perf_seeds,
        max_size=256,
    ),
)
