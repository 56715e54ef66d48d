"""What a namespace needs of the node that it is in. `sbp2p.node` has one; nothing else is assumed.

A namespace lies below the node in the layers: it names what it uses, and the node satisfies it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from random import Random

    from sbp2p.calls import Calls
    from sbp2p.config import NamespaceConfig
    from sbp2p.dht import Dht
    from sbp2p.discovery import Discovery
    from sbp2p.exchange import Exchange
    from sbp2p.node.values import Version
    from sbp2p.store import Store, VersionRecord
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.manifest import MetaValue


class Host(Protocol):
    """A node, as a namespace sees it."""

    @property
    def peer_id(self) -> PeerId:
        """Who the node is to its peers."""

    @property
    def home(self) -> Path:
        """Where its files may lie."""

    @property
    def config(self) -> NamespaceConfig:
        """Knobs."""

    @property
    def swarm(self) -> Swarm:
        """Who is connected."""

    @property
    def exchange(self) -> Exchange:
        """What fetches."""

    @property
    def store(self) -> Store:
        """What is on disk."""

    @property
    def discovery(self) -> Discovery:
        """Who else is known."""

    @property
    def dht(self) -> Dht | None:
        """The node's part in the DHT, if it takes any."""

    @property
    def calls(self) -> Calls:
        """Where blocking calls run."""

    @property
    def rng(self) -> Random:
        """Spreads load."""

    async def publish(
        self,
        path: Path,
        *,
        name: str,
        meta: Mapping[str, MetaValue],
        parents: Sequence[Cid],
    ) -> tuple[VersionRecord, Version]:
        """Hash what lies at `path` and sign it as the next version of a model, told to nobody.

        Unlike a version that a user publishes it is neither put under the node's name nor into
        the DHT before `announce` names it.
        """

    def announce(self, name: str, cids: Iterable[Cid]) -> None:
        """Of the versions of a model that this node signed, announce these alone from now on."""
