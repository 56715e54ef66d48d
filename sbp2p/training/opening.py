"""What a training loop begins with: `sbp2p.background`, which makes a node in a namespace."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sbp2p.node import Node
from sbp2p.roles import Role

from .beside import Background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from sbp2p.merge.method import Method
    from sbp2p.namespace import Namespace
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.round_record import Option
    from sbp2p_protocol.rounds import RoundSettings
    from sbp2p_protocol.topology import Topology


def background(
    namespace: str,
    *,
    peers: Sequence[str] = (),
    topology: Topology | str = "full",
    method: Method | str = "mean",
    options: Mapping[str, Option] | None = None,
    role: Role | str = Role.PEER,
    rounds: RoundSettings | None = None,
    codec: str = "lossless",
    peer_filter: Callable[[PeerId], bool] | None = None,
    home: Path | str | None = None,
    listen: Sequence[str] = (),
    **node: Any,
) -> Background:
    """Return a node in a namespace for a training loop that is not async, to be entered.

    Args:
        namespace: what the nodes that train together have in common.
        peers: addresses of some of them; more are found through these, the DHT and the LAN.
        topology: who merges with whom; the same everywhere.
        method: the merge method, as `sbp2p merge --list` names it, or a method.
        options: of the method, when it is named.
        role: `peer`; a `seed` publishes and does not merge, a `leech` merges and does not publish.
        rounds: deadline, quorum and staleness.
        codec: how updates are encoded; `lossless` as they are.
        peer_filter: who may take part, as far as this node goes.
        home: the node's folder; see `Node`.
        listen: multiaddrs to listen on; none to only dial.
        node: other arguments of `Node`, such as `config=`.

    Raises:
        Sbp2pError: from entering the block: the node or the namespace cannot be opened.
    """

    @asynccontextmanager
    async def open_() -> AsyncIterator[tuple[Node, Namespace]]:
        async with Node(home=home, listen=listen, **node) as opened:
            async with opened.namespace(
                namespace,
                role=role,
                topology=topology,
                peer_filter=peer_filter,
                peers=peers,
                rounds=rounds,
                codec=codec,
            ) as inside:
                yield opened, inside

    return Background(open_, namespace=namespace, method=method, options=options)
