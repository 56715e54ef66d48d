from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.cid import DAG_CBOR, Cid, raw_cid
from sbp2p_protocol.link import BadLinkError, ManifestLink, NameLink, parse_link
from sbp2p_protocol.manifest import check_model_name
from sbp2p_protocol.multiaddr import parse_address

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "link.json"
VECTORS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))

PEER = PrivateKey.from_seed(bytes(32)).peer_id
MANIFEST = Cid(1, DAG_CBOR, 0x1E, bytes(32))
ADDRESS = parse_address(f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}")


@pytest.mark.parametrize("case", VECTORS["valid"], ids=lambda case: case["name"])
def test_valid_vector(case: dict[str, Any]) -> None:
    link = parse_link(case["text"])
    assert str(link) == case["canonical"]
    assert parse_link(str(link)) == link
    assert [str(peer) for peer in link.peers] == case["peers"]
    if isinstance(link, ManifestLink):
        assert str(link.manifest) == case["manifest"]
    else:
        assert (str(link.publisher), link.name) == (case["publisher"], case["model"])
        assert link.version == case["version"]


@pytest.mark.parametrize("case", VECTORS["invalid"], ids=lambda case: case["name"])
def test_invalid_vector(case: dict[str, Any]) -> None:
    with pytest.raises(BadLinkError) as caught:
        parse_link(case["text"])
    assert "\n" not in str(caught.value)


def test_both_forms_with_several_peers() -> None:
    peers = (ADDRESS, parse_address(f"/dns/example.org/tcp/1/p2p/{PEER}"))
    for link in (ManifestLink(MANIFEST, peers), NameLink(PEER, "org/model", 7, peers)):
        assert parse_link(str(link)) == link
        assert parse_link(f"\n  {link} ") == link


def test_parts_that_cannot_be_in_a_link() -> None:
    with pytest.raises(BadLinkError, match="dag-cbor"):
        ManifestLink(raw_cid(bytes(32)))
    with pytest.raises(BadLinkError, match="peer-id"):
        ManifestLink(MANIFEST, (ADDRESS.without_peer(),))
    with pytest.raises(BadLinkError, match="17 peers"):
        ManifestLink(MANIFEST, (ADDRESS,) * 17)
    with pytest.raises(BadLinkError, match="version"):
        NameLink(PEER, "a", 0)
    with pytest.raises(BadLinkError, match="place"):
        NameLink(PEER, "..")
    with pytest.raises(BadLinkError, match="characters"):
        parse_link("sbp2p:" + "b" * 100_000)


@given(
    st.text(min_size=1, max_size=128).filter(lambda name: check_model_name(name) is None),
    st.none() | st.integers(1, 2**53 - 1),
)
@example("a@b", 1)
@example("a b/c#d", None)
@example("100%", None)
def test_every_allowed_name_round_trips(name: str, version: int | None) -> None:
    link = NameLink(PEER, name, version, (ADDRESS,))
    text = str(link)
    assert parse_link(text) == link
    assert text.isascii()
    assert not any(character.isspace() for character in text)


def test_ids_of_other_kinds_and_in_other_texts() -> None:
    hashed = PeerId.from_bytes(bytes.fromhex("1220") + bytes(32))
    assert parse_link(f"sbp2p://{hashed}/m") == NameLink(hashed, "m")
    assert parse_link(f"sbp2p://{PEER.to_cid_text()}/m") == NameLink(PEER, "m")


_parts = st.sampled_from(
    [
        str(PEER),
        str(MANIFEST),
        str(ADDRESS),
        "/ip4/1.2.3.4/tcp/1",
        "peer=",
        *"/@?&%1 \u00e9",
        "%41",
        "%ff",
    ]
)


@given(st.text() | st.lists(_parts | st.text(max_size=3), max_size=12).map("".join))
def test_garbage_raises_only_bad_link(text: str) -> None:
    for candidate in (text, "sbp2p:" + text, f"sbp2p://{PEER}/{text}", f"sbp2p:{MANIFEST}?{text}"):
        with contextlib.suppress(BadLinkError):
            link = parse_link(candidate)
            assert parse_link(str(link)) == link
