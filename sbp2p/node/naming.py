"""Names, as a node's user means them: links in, and with the peers that were named besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.errors import ConfigError, PeerMisbehavedError
from sbp2p.exchange import Source
from sbp2p_protocol.link import NameLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sbp2p.errors import Sbp2pError
    from sbp2p.naming import Following, ResolvedName
    from sbp2p_protocol.link import Link
    from sbp2p_protocol.manifest import Manifest
    from sbp2p_protocol.multiaddr import Address

    from .node import Node


async def resolve(node: Node, link: Link, peers: Sequence[Address]) -> ResolvedName:
    """Return what the name in a link stands for; see Node.resolve."""
    named = _named(link)
    await node.finder.wait_for_dht()
    return await node.naming.resolve(
        named.publisher, named.name, named.version, sources=_sources([*peers, *named.peers])
    )


def follow(
    node: Node,
    link: Link,
    peers: Sequence[Address],
    *,
    after: int,
    trouble: Callable[[Sbp2pError], None] | None,
) -> Following:
    """Return an iterator over the versions of a name; see Node.follow."""
    named = _named(link)
    return node.naming.follow(named, sources=_sources(peers), after=after, trouble=trouble)


def check_answer(link: Link, manifest: Manifest) -> None:
    """Raise PeerMisbehavedError unless a version is what a name in a link can stand for.

    A catalog names manifests by their CID alone, so it could name somebody else's.
    """
    if not isinstance(link, NameLink):
        return
    answer = (manifest.publisher, manifest.name)
    if answer != (link.publisher, link.name) or link.version not in (None, manifest.version):
        raise PeerMisbehavedError(
            f"the name leads to version {manifest.version} of {manifest.name}"
            f" by {manifest.publisher}, which it does not stand for",
            hint="no peer can help: tell the publisher",
        )


def _named(link: Link) -> NameLink:
    if not isinstance(link, NameLink):
        raise ConfigError(
            "this link names one version by its content, and no publisher",
            hint="links to names look like sbp2p://PEER/NAME",
        )
    return link


def _sources(addresses: Iterable[Address]) -> list[Source]:
    sources = []
    for address in addresses:
        if address.peer_id is None:
            raise ConfigError(
                f"{address.text} does not say which peer is there",
                hint="add /p2p/<peer-id> at its end, as `sbp2p seed` prints it",
            )
        sources.append(Source(address.peer_id, (address,)))
    return sources
