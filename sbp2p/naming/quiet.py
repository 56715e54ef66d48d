"""Versions of a namespace's rounds: there is a new one every few seconds, and none is told of.

A version whose manifest says of which round it is (protocol/namespace.md) is neither put into a
catalog nor into the DHT, here or by those who have fetched it, unless it is named here: the
namespace names its newest now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.manifest import Manifest


class QuietVersions:
    """Which versions of this node's store are told of nowhere. Read by threads, too."""

    def __init__(self) -> None:
        self._told: dict[str, frozenset[Cid]] = {}

    def tell(self, name: str, cids: Iterable[Cid]) -> None:
        """Of the rounds of a model, tell of these alone."""
        self._told = {**self._told, name: frozenset(cids)}

    def hides(self, manifest: Manifest) -> bool:
        """Whether a version is told of nowhere."""
        meta = manifest.meta
        if type(meta.get("round")) is not int or not isinstance(meta.get("peer"), bytes):
            return False
        return manifest.cid not in self._told.get(manifest.name, frozenset())
