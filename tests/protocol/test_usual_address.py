"""The usual addresses are read as the `multiaddr` package reads them, or left to it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiaddr import Multiaddr

from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.usual_address import decode_usual, encode_usual
from tests.vectors import load_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p_protocol.usual_address import Component

PEER = str(PrivateKey.from_seed(b"u" * 32).peer_id)
SPARSE = st.lists(st.sampled_from([0, 0, 0, 1, 0xFFFF]) | st.integers(0, 0xFFFF), min_size=8)
"""Groups of an IPv6 address with runs of zeros, which are what texts differ about."""

hosts = st.one_of(
    st.ip_addresses(v=4).map(lambda each: ("ip4", str(each))),
    st.ip_addresses(v=6).map(lambda each: ("ip6", str(each))),
    SPARSE.map(lambda groups: b"".join(group.to_bytes(2) for group in groups[:8])).map(
        lambda packed: ("ip6", str(IPv6Address(packed)))
    ),
)
ports = st.tuples(st.sampled_from(["tcp", "udp"]), st.integers(0, 65535).map(str))
peers: st.SearchStrategy[list[Component]] = st.sampled_from([[("p2p", PEER)], []])


def text_of(components: Sequence[Component]) -> str:
    return "".join(f"/{name}/{value}" for name, value in components)


@given(hosts, ports, peers)
def test_both_forms_are_the_package_s(
    host: Component, port: Component, peer: list[Component]
) -> None:
    components = [host, port, *peer]
    theirs = Multiaddr(text_of(components))
    ours = encode_usual(components)
    assert (ours is None) == (host[0] == "ip6" and not is_usual(str(host[1])))
    if ours is not None:
        assert ours[0] == theirs.to_bytes()
        assert text_of(ours[1]) == str(Multiaddr(theirs.to_bytes()))
        assert decode_usual(ours[0]) == ours[1]
    assert parse_address(text_of(components)).to_bytes() == theirs.to_bytes()


def is_usual(text: str) -> bool:
    return IPv6Address(text) <= IPv6Address(1) or int(IPv6Address(text)) >> 112 > 0


@given(st.binary(max_size=80))
def test_what_is_read_from_bytes_is_the_package_s(data: bytes) -> None:
    components = decode_usual(data)
    if components:
        assert text_of(components) == str(Multiaddr(data))
        assert encode_usual(components) == (data, components)


def test_published_pairs() -> None:
    vectors: dict[str, Any] = load_vectors("multiaddr")
    seen = 0
    for text, binary in (vectors["go_tests"] | vectors["derived"]).items():
        components = decode_usual(bytes.fromhex(binary))
        if components is not None:
            seen += 1
            assert text_of(components) == text
    assert seen > 3


@pytest.mark.parametrize(
    "components",
    [
        [("ip4", "01.2.3.4")],
        [("ip4", "1.2.3")],
        [("ip4", "1.2.3.4.5")],
        [("ip4", "1.2.3.256")],
        [("ip4", "1.2.3.")],
        [("ip4", "1.2.3.\u0664")],
        [("tcp", "080")],
        [("tcp", "65536")],
        [("tcp", "-1")],
        [("tcp", "")],
        [("ip6", "fe80::1%eth0")],
        [("ip6", "::ffff:1.2.3.4")],
        [("ip6", "::1.2.3.4")],
        [("ip6", "nonsense")],
        [("dns4", "example.org"), ("tcp", "1")],
        [("p2p", "12D3KooW")],
        [("p2p", "Qm")],
        [("quic-v1", None)],
    ],
)
def test_the_rest_is_left_to_the_package(components: list[Component]) -> None:
    assert encode_usual(components) is None


@pytest.mark.parametrize(
    "binary", ["04010203", "06", "29", "9102", "a503", "a50300", "a5030100", "ff", "0601bba503"]
)
def test_bytes_that_are_cut_short_are_left_to_the_package(binary: str) -> None:
    assert decode_usual(bytes.fromhex(binary)) is None


def test_an_address_that_prints_differently_prints_as_it_should() -> None:
    assert parse_address("/ip6/2001:DB8::0/tcp/1").text == "/ip6/2001:db8::/tcp/1"
    assert parse_address("/ip4/127.0.0.1/tcp/1").host == str(IPv4Address("127.0.0.1"))
