"""Multiaddrs: published pairs, refusals, liberties, and garbage in both forms."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import ADDRESS_MAX
from sbp2p_protocol.multiaddr import BadAddressError, address_from_bytes, parse_address
from tests.vectors import load_vectors

if TYPE_CHECKING:
    from collections.abc import Iterator

PEER = PrivateKey.from_seed(b"p" * 32).peer_id
OTHER = PrivateKey.from_seed(b"q" * 32).peer_id


def published() -> Iterator[tuple[str, str]]:
    vectors: dict[str, Any] = load_vectors("multiaddr")
    yield from (vectors["go_tests"] | vectors["derived"]).items()


def test_published_pairs() -> None:
    for text, binary in published():
        address = parse_address(text)
        assert address.to_bytes().hex() == binary
        assert str(address) == address.text == text
        again = address_from_bytes(bytes.fromhex(binary))
        assert again == address
        assert again.text == text


def test_published_refusals() -> None:
    for text in load_vectors("multiaddr")["must_reject_text"]:
        with pytest.raises(BadAddressError):
            parse_address(text)


def test_cut_binary_forms_are_refused() -> None:
    for _, binary in published():
        data = bytes.fromhex(binary)
        whole = set()
        for size in range(len(data)):
            with contextlib.suppress(RemoteProtocolError):
                whole.add(address_from_bytes(data[:size]).to_bytes())
        # what is accepted is whole components of the address
        assert all(parse_address(address_from_bytes(part).text).data == part for part in whole)
        assert len(whole) < 7


@pytest.mark.parametrize(
    "text",
    [
        "//ip4/1.2.3.4/tcp/1",
        "/ip4/1.2.3.4//tcp/1",
        "/ip4/1.2.3.4/tcp/1//",
        "/ip4/1.2.3.4/tcp/8_0",
        "/ip4/1.2.3.4/tcp/080",
        "/ip4/1.2.3.4/tcp/ 80",
        "/ip4/1.2.3.4/tcp/+80",
        "/ip4/1.2.3.4/tcp/\u0663",
        "/ip4/01.2.3.4/tcp/1",
        "/ip4/127.1/tcp/1",
        "/ip4/2130706433/tcp/1",
        "/dns4/a b/tcp/1",
        "/dns4//tcp/1",
        "/memory/-1",
        "/memory/18446744073709551616",
        "/nonsense/1",
        "/tcp=1",
        "/ip4=1.2.3.4/tcp/1",
        "/p2p/12D3KooW",
        "/p2p/bafkqaaa",
        "/ip4/1.2.3.4/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5",
        "/dns4/" + "a." * ADDRESS_MAX + "/tcp/1",
    ],
)
def test_lax_text_is_refused(text: str) -> None:
    with pytest.raises(BadAddressError) as caught:
        parse_address(text)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LocalProtocolError)


@pytest.mark.parametrize(
    "binary",
    [
        "",
        "04",
        "047f0000",
        "0401020304060050ff",
        "8404010203040600508400",
        "350b6578",
        "3500",
        "3502fffe",
        "35022f61",
        "a50300",
        "a5030100",
        "0401020304060050a50303010203",
        "ffff",
        "8001",
        "ffffffffffffffffff7f",
        "8906000000000000000000",
        "04" * 2000,
        "2a052065746830",
        "9003022f61",
    ],
)
def test_bad_binary_is_refused(binary: str) -> None:
    with pytest.raises(RemoteProtocolError):
        address_from_bytes(bytes.fromhex(binary))


@pytest.mark.parametrize(
    ("text", "usual"),
    [
        ("/ip4/1.2.3.4/tcp/80/", "/ip4/1.2.3.4/tcp/80"),
        (f"/ipfs/{PEER}", f"/p2p/{PEER}"),
        (f"/p2p/{PEER.to_cid_text()}", f"/p2p/{PEER}"),
        ("/ip6/2001:0DB8:0:0::1/tcp/1", "/ip6/2001:db8::1/tcp/1"),
        ("/dns4/ipfs/tcp/1", "/dns4/ipfs/tcp/1"),
        ("/unix/a/ipfs/b", "/unix/a/ipfs/b"),
    ],
)
def test_liberties(text: str, usual: str) -> None:
    assert parse_address(text).text == usual
    assert parse_address(text) == parse_address(usual)


@pytest.mark.parametrize(
    ("text", "kind", "host", "port", "dialable"),
    [
        ("/ip4/127.0.0.1/tcp/4001", "ip4", "127.0.0.1", 4001, True),
        ("/ip6/::1/tcp/0", "ip6", "::1", 0, True),
        ("/ip6zone/eth0/ip6/fe80::1/tcp/9", "ip6", "fe80::1%eth0", 9, True),
        ("/dns/example.com/tcp/443", "dns", "example.com", 443, True),
        ("/dns4/example.com/tcp/443", "dns4", "example.com", 443, True),
        ("/dns6/example.com/tcp/443", "dns6", "example.com", 443, True),
        ("/memory/7", "memory", "", 7, True),
        ("/ip4/127.0.0.1/udp/4001/quic-v1", "ip4", "127.0.0.1", 0, False),
        ("/ip4/127.0.0.1/tcp/4001/ws", "ip4", "127.0.0.1", 4001, False),
        ("/dnsaddr/bootstrap.libp2p.io", "dnsaddr", "", 0, False),
        ("/ip4/127.0.0.1", "ip4", "127.0.0.1", 0, False),
        ("/ip6zone/eth0", "ip6zone", "", 0, False),
        ("/ip6zone/eth0/tcp/1", "tcp", "", 1, False),
        ("/ip6zone/eth0/ip4/1.2.3.4/tcp/1", "ip4", "1.2.3.4", 1, False),
        ("/tcp/5", "tcp", "", 5, False),
        ("/p2p-circuit", "p2p-circuit", "", 0, False),
    ],
)
def test_what_a_transport_needs_to_know(
    text: str, kind: str, host: str, port: int, dialable: bool
) -> None:
    address = parse_address(text)
    assert address.peer_id is None
    for form in (address, address.with_peer(PEER)):
        assert (form.host, form.port, form.is_dialable) == (host, port, dialable)
        assert form.without_peer() == address
    assert address.kind == kind
    assert address.with_peer(PEER).peer_id == PEER


def test_the_peer_id_at_the_end_is_the_one_that_counts() -> None:
    direct = parse_address(f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}")
    assert direct.peer_id == PEER
    assert direct.with_peer(OTHER).text == f"/ip4/1.2.3.4/tcp/1/p2p/{OTHER}"
    relayed = parse_address(f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit")
    assert relayed.peer_id is None
    assert not relayed.is_dialable
    assert relayed.with_peer(OTHER).peer_id == OTHER


def test_a_peer_id_alone() -> None:
    alone = parse_address(f"/p2p/{PEER}")
    assert alone.peer_id == PEER
    assert (alone.kind, alone.host, alone.port, alone.is_dialable) == ("p2p", "", 0, False)
    with pytest.raises(BadAddressError):
        alone.without_peer()


def test_a_zone_is_framed_by_its_length() -> None:
    address = parse_address("/ip6zone/1.2.3.4/ip6/fe80::1/tcp/1")
    assert address_from_bytes(address.to_bytes()) == address


def test_addresses_are_values() -> None:
    one, two = parse_address("/memory/1"), parse_address("/memory/1/")
    assert one == two
    assert len({one, two, parse_address("/memory/2")}) == 2


@given(st.binary(max_size=80))
def test_garbage_bytes_raise_only_the_remote_error(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert address_from_bytes(data).to_bytes() == data


CODES = [4, 6, 41, 42, 43, 53, 54, 56, 273, 290, 400, 421, 444, 445, 446, 447, 448, 449, 466, 481]
CODES += [280, 460, 477, 777, 33, 132, 301, 302, 480, 454, 465]


@given(st.lists(st.tuples(st.sampled_from(CODES), st.binary(max_size=40), st.booleans())))
def test_plausible_bytes_raise_only_the_remote_error(
    parts: list[tuple[int, bytes, bool]],
) -> None:
    data = b""
    for code, value, prefixed in parts:
        data += bytes([code]) if code < 128 else bytes([code & 0x7F | 0x80, code >> 7])
        data += bytes([len(value)]) * prefixed + value
    with contextlib.suppress(RemoteProtocolError):
        address = address_from_bytes(data)
        assert parse_address(address.text) == address
        _ = (address.kind, address.host, address.port, address.is_dialable)


NAMES = ["ip4", "ip6", "tcp", "dns", "p2p", "ipfs", "unix", "memory", "onion", "onion3", "garlic64"]
NAMES += ["certhash", "http-path", "ip6zone", "ipcidr", "sni", "garlic32", "ws", "quic", "", "x"]


@given(
    st.lists(
        st.one_of(
            st.sampled_from(NAMES),
            st.sampled_from(["1.2.3.4", "::1", "80", str(PEER), "a.b", "uEiA", "%2f", "tcp=1"]),
            st.text(max_size=20),
        )
    )
)
def test_any_text_raises_only_bad_address(parts: list[str]) -> None:
    with contextlib.suppress(BadAddressError):
        address = parse_address("/" + "/".join(parts))
        assert parse_address(address.text) == address
        assert address_from_bytes(address.to_bytes()) == address
        assert isinstance(address.peer_id, PeerId | None)


@pytest.mark.parametrize("zone", ["\x1b[2J", "a\nb", "\u202eabc", "\x00"])
def test_an_address_that_does_not_print_is_none(zone: str) -> None:
    with pytest.raises(BadAddressError):
        parse_address(f"/ip6zone/{zone}/ip6/fe80::1/tcp/1")
    raw = zone.encode()
    data = b"\x2a" + bytes([len(raw)]) + raw + b"\x29" + bytes(16) + b"\x06\x00\x01"
    with pytest.raises(RemoteProtocolError):
        address_from_bytes(data)


def test_an_address_whose_text_is_too_long_is_none() -> None:
    data = bytes.fromhex("0465666768cd03") * 70  # /ip4/101.102.103.104/quic-v1, 490 bytes in all
    with pytest.raises(RemoteProtocolError):
        address_from_bytes(data)


@pytest.mark.parametrize("text", ["/" + "\x00" * 1000, "/garlic64/\udce2", "/ip4/" + "\x07" * 900])
def test_messages_are_short_and_print(text: str) -> None:
    with pytest.raises(BadAddressError) as caught:
        parse_address(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500
