"""The namespaces that a node is in: what `sbp2p.namespace` needs of the node, from the node.

Versions that a namespace publishes are signed and stored like every other, but there is a new one
every round: of those only what `announce` names is put under the node's name and into the DHT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sbp2p.namespace.hub import Hub
from sbp2p.namespace.namespace import open_namespace

from . import publishing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from random import Random

    from sbp2p.calls import Calls
    from sbp2p.config import NamespaceConfig, NodeConfig
    from sbp2p.dht import Dht
    from sbp2p.discovery import Discovery
    from sbp2p.exchange import Exchange
    from sbp2p.namespace import Namespace
    from sbp2p.store import Store, VersionRecord
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId, PrivateKey
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.manifest import MetaValue

    from .environment import Environment
    from .parts import Parts
    from .values import Version


@dataclass(frozen=True, slots=True)
class NodeHost:
    """A node as its namespaces see it: a `sbp2p.namespace.host.Host`."""

    signer: PrivateKey
    parts: Parts
    environment: Environment
    home: Path
    config: NamespaceConfig
    changed: Callable[[], None]

    @property
    def peer_id(self) -> PeerId:
        """Who the node is to its peers."""
        return self.parts.swarm.peer_id

    @property
    def swarm(self) -> Swarm:
        """Who is connected."""
        return self.parts.swarm

    @property
    def exchange(self) -> Exchange:
        """What fetches."""
        return self.parts.exchange

    @property
    def store(self) -> Store:
        """What is on disk."""
        return self.parts.store

    @property
    def discovery(self) -> Discovery:
        """Who else is known."""
        return self.parts.discovery

    @property
    def dht(self) -> Dht | None:
        """The node's part in the DHT."""
        return self.parts.dht

    @property
    def calls(self) -> Calls:
        """Where blocking calls run."""
        return self.environment.calls

    @property
    def rng(self) -> Random:
        """Spreads load."""
        return self.environment.rng

    async def publish(
        self, path: Path, *, name: str, meta: Mapping[str, MetaValue], parents: Sequence[Cid]
    ) -> tuple[VersionRecord, Version]:
        """Hash and sign the next version of a model, told to nobody."""
        now = self.environment.wall_clock()
        request = publishing.make_request(path, name=name, meta=meta, parents=parents, now=now)
        result = await publishing.publish(self.store, self.signer, request, calls=self.calls)
        record = await self.calls.run_to_end(self.store.version, result.version.cid)
        if record is None:
            raise RuntimeError("a version is gone that was published a moment ago")
        return record, result.version

    def announce(self, name: str, cids: Iterable[Cid]) -> None:
        """Announce these versions of a model, and no others of it."""
        self.parts.quiet.tell(name, cids)
        self.changed()


def open_namespaces(
    parts: Parts,
    *,
    signer: PrivateKey,
    environment: Environment,
    home: Path,
    config: NodeConfig,
    changed: Callable[[], None],
) -> Namespaces:
    """Return what opens the namespaces of a node that is open."""
    return Namespaces(NodeHost(signer, parts, environment, home, config.namespace, changed))


class Namespaces:
    """Those of one open node."""

    def __init__(self, host: NodeHost) -> None:
        self._host = host
        self._hub = Hub(host.swarm, host.config)

    def open(self, name: str, **options: Any) -> AbstractAsyncContextManager[Namespace]:
        """Return a namespace, which is to be entered; see `open_namespace` for the options."""
        return open_namespace(self._host, self._hub, name, **options)
