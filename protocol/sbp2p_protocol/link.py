"""Links: one pasteable line that names a version, and where to ask for it.

Theory of operation: two forms, one for exactly one version and one for whatever a publisher says
is newest (or one numbered version of it):

    sbp2p:<manifest-cid>?peer=<multiaddr>&peer=<multiaddr>
    sbp2p://<peer-id>/<name>@<version>?peer=<multiaddr>

Everything after the manifest's CID or the name is optional. `str(link)` is the canonical text, and
parsing it gives an equal link: CIDs in base32, peer ids in base58btc, names and addresses
percent-encoded as UTF-8 except for letters, digits and `-._~/` (and `:` in addresses). The parser
also takes other bases and needless percent-encoding, and white space around the whole.

Error cases: text comes from a person, so everything raises BadLinkError, a ValueError whose message
is one line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.cid import DAG_CBOR, BadCidError, Cid
from sbp2p_protocol.limits import LINK_PEERS_MAX, LINK_TEXT_MAX
from sbp2p_protocol.manifest import COUNTER_MAX, check_model_name
from sbp2p_protocol.multiaddr import BadAddressError, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbp2p_protocol.multiaddr import Address

SCHEME: Final = "sbp2p:"
_VERSION: Final = re.compile(r"[1-9][0-9]{0,15}\Z", re.ASCII)
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# what a URL may hold outside percent-encoding, without ? and # and %
_NOT_URL: Final = re.compile(r"[^A-Za-z0-9\-._~:/@!$&'()*+,;=%]")


class BadLinkError(ValueError):
    """Text that is not a link, or a link made from parts that cannot be in one."""


@dataclass(frozen=True, slots=True)
class ManifestLink:
    """Exactly one version, by the CID of its manifest; `peers` are addresses to ask."""

    manifest: Cid
    peers: tuple[Address, ...] = ()

    def __post_init__(self) -> None:
        """Refuse with BadLinkError what cannot be in a link."""
        if not self.manifest.is_blake3 or self.manifest.codec != DAG_CBOR:
            raise BadLinkError(f"{self.manifest} cannot be a manifest: not dag-cbor with BLAKE3")
        _check_peers(self.peers)

    def __str__(self) -> str:
        return f"{SCHEME}{self.manifest}{_query(self.peers)}"


@dataclass(frozen=True, slots=True)
class NameLink:
    """A publisher's model: the newest version, or the numbered one."""

    publisher: PeerId
    name: str
    version: int | None = None
    peers: tuple[Address, ...] = ()

    def __post_init__(self) -> None:
        """Refuse with BadLinkError what cannot be in a link."""
        if (reason := check_model_name(self.name)) is not None:
            raise BadLinkError(f"model name {self.name[:200]!r}: {reason}")
        if self.version is not None and not 1 <= self.version <= COUNTER_MAX:
            raise BadLinkError(f"version {self.version} is not from 1 to {COUNTER_MAX}")
        _check_peers(self.peers)

    def __str__(self) -> str:
        version = "" if self.version is None else f"@{self.version}"
        name = quote(self.name, safe="/")
        return f"{SCHEME}//{self.publisher}/{name}{version}{_query(self.peers)}"


Link: TypeAlias = ManifestLink | NameLink


def _query(peers: tuple[Address, ...]) -> str:
    return "".join(
        f"{'&' if number else '?'}peer={quote(str(peer), safe='/:')}"
        for number, peer in enumerate(peers)
    )


def _check_peers(peers: tuple[Address, ...]) -> None:
    if len(peers) > LINK_PEERS_MAX:
        raise BadLinkError(f"{len(peers)} peers in a link (at most {LINK_PEERS_MAX})")
    for peer in peers:
        # without it, whoever answers at the address is taken for the peer that was meant
        if peer.peer_id is None:
            raise BadLinkError(f"peer address {peer} does not end in /p2p/<peer-id>")


def parse_link(text: str) -> Link:
    """Read a link of either form; raises BadLinkError."""
    text = text.strip()
    if len(text) > LINK_TEXT_MAX:
        raise BadLinkError(f"a link of {len(text)} characters (at most {LINK_TEXT_MAX})")
    if not text.startswith(SCHEME):
        raise BadLinkError(f"not a link: {text[:60]!r} does not begin with {SCHEME!r}")
    body, mark, query = text[len(SCHEME) :].partition("?")
    if mark and not query:
        raise BadLinkError("nothing after the '?' of the link")
    peers = tuple(_parse_peers(query.split("&"))) if mark else ()
    if body.startswith("//"):
        return _parse_name_link(body[2:], peers)
    try:
        return ManifestLink(Cid.parse(body), peers)
    except BadCidError as error:
        raise BadLinkError(str(error)) from error


def _parse_name_link(body: str, peers: tuple[Address, ...]) -> NameLink:
    publisher, slash, rest = body.partition("/")
    if not slash:
        raise BadLinkError("a link of this form is sbp2p://<peer-id>/<name>")
    name, mark, number = rest.partition("@")
    if mark and not (_VERSION.match(number) and int(number) <= COUNTER_MAX):
        raise BadLinkError(f"version {number[:40]!r} is not a number from 1 to {COUNTER_MAX}")
    try:
        peer_id = PeerId.parse(publisher)
    except KeysError as error:
        raise BadLinkError(f"publisher {publisher[:80]!r} is not a peer id: {error}") from error
    return NameLink(peer_id, _unquote(name), int(number) if mark else None, peers)


def _parse_peers(parameters: Iterable[str]) -> Iterable[Address]:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key != "peer":
            raise BadLinkError(f"unknown parameter {key[:40]!r}: a newer sbp2p may have made it")
        address = _unquote(value)
        try:
            yield parse_address(address)
        except BadAddressError as error:
            raise BadLinkError(f"peer address {address[:200]!r}: {error}") from error


def _unquote(text: str) -> str:
    if _BAD_PERCENT.search(text) or _NOT_URL.search(text):
        raise BadLinkError(f"{text[:200]!r} is not percent-encoded")
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLinkError(f"{text[:200]!r} is not percent-encoded UTF-8") from error
