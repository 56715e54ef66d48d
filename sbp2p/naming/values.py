"""What naming says to its user: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from sbp2p.exchange import Source
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

    from .pointers import Evidence

Origin: TypeAlias = Literal["pointer", "peers", "kept"]
"""Who told: the publisher's pointer in the DHT, connected peers, or this node's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedName:
    """What a name stands for, as far as can be told now. Everything here was signed.

    Attributes:
        publisher: Whose name it is.
        name: Of the model.
        version: The number.
        manifest: The CID of exactly this version.
        origin: Who told of this version. Of "kept" the publisher may have a newer one by now.
        age_s: Seconds since the publisher's pointer was last heard of; 0 if it was just now, None
            if no pointer is known.
        sequence: Of that pointer; None if none is known.
        valid_until: Unix time at which that pointer ends; None if none is known.
        ttl_s: For how long it need not be asked for again; 0 if none is known.
        sources: Peers that may have the version.
        rollbacks: Statements that were refused since they are older than what is known here.
        evidence: What shows that this publisher has signed contradictions, ever.
    """

    publisher: PeerId
    name: str
    version: int
    manifest: Cid
    origin: Origin
    age_s: float | None
    sequence: int | None
    valid_until: float | None
    ttl_s: float
    sources: tuple[Source, ...] = ()
    rollbacks: int = 0
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCatalog:
    """What stands under this node's name.

    Attributes:
        cid: Of the catalog.
        sequence: Of the record that points to it.
        models: How many names it lists.
        valid_until: Unix time at which the record ends.
        servers: How many servers of the DHT took the record just now.
        changed: Whether it says something else than the one before.
    """

    cid: Cid
    sequence: int
    models: int
    valid_until: float
    servers: int
    changed: bool
