"""What can be seen of a running node: log lines and counters.

All logging of the package goes through this module, so that what is logged, at which level and
about whom is decided once. Peers cause warnings at most: a peer must not be able to fill a log
with tracebacks, except where its stream met a bug of ours.

| level | what |
|---|---|
| ERROR | a bug of ours, with its traceback |
| WARNING | a peer was penalized or banned; a file of ours is not what it was |
| INFO | peers come and go |
| DEBUG | everything refused or lost, with the reason |
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

_log = logging.getLogger("sbp2p")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionStatistics:
    """One connection at one moment. Bytes are those on the wire, encrypted and framed."""

    peer_id: PeerId
    remote_address: str
    initiator: bool
    security: str
    bytes_sent: int
    bytes_received: int
    bytes_queued: int
    open_streams: int
    rtt_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Payload between this node and one peer, of one version, since the node was opened."""

    peer_id: PeerId | None
    """None: of several peers, which were last heard of long ago."""
    root: Cid | None
    """None: tree nodes, and blocks that may belong to several versions."""
    bytes_sent: int
    blocks_sent: int
    bytes_received: int
    """Of blocks that were right."""
    blocks_received: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmStatistics:
    """The connection table at one moment, and what it has seen since it was opened."""

    connections: tuple[ConnectionStatistics, ...]
    half_open: int
    dials: int
    dials_failed: int
    accepted: int
    refused: int
    bytes_sent: int
    """Over all connections, closed ones included."""
    bytes_received: int
    traffic: tuple[Traffic, ...] = ()
    """Payload by peer and version, of a node; a swarm alone does not know."""


def report_bug(where: str, error: BaseException) -> None:
    """Log an error that nobody raised on purpose, with its traceback."""
    _log.error("bug in %s: %s", where, error, exc_info=error)


def report_peer_connected(peer_id: PeerId, address: str, *, initiator: bool) -> None:
    """Log that a peer is authenticated and admitted."""
    _log.info("connected %s %s at %s", "to" if initiator else "from", peer_id, address)


def report_peer_gone(peer_id: PeerId, reason: str) -> None:
    """Log that a connection ended."""
    _log.info("connection with %s ended: %s", peer_id, reason)


def report_penalty(peer_id: PeerId, points: int, reason: str, *, banned: bool) -> None:
    """Log that a peer did something it should not have."""
    outcome = "banned" if banned else f"{points} penalty points"
    _log.warning("peer %s: %s: %s", peer_id, reason, outcome)


def report_lost_file(path: str, what: str) -> None:
    """Log that an indexed file cannot serve some of its blocks any more."""
    _log.warning(
        "%s %s: what is gone of it is no longer served; `sbp2p verify` tells more", path, what
    )


def report_web_seed_dropped(url: str, reason: str) -> None:
    """Log that a web server is not asked any more."""
    _log.warning("web seed %s is not asked any more: %s", url, reason)


def report_set_aside(path: str, suffix: str, reason: str) -> None:
    """Log that a database of ours cannot be used and that a new one is begun."""
    _log.warning("%s is kept as %s%s and begun anew: %s", path, path, suffix, reason)


def report_not_saved(what: str, error: object) -> None:
    """Log that something could not be written to a disk; it goes on without."""
    _log.warning("%s cannot be saved: %s", what, error)


def report_refused(who: object, reason: str) -> None:
    """Log that an address, a peer or a stream was turned away."""
    _log.debug("refused %s: %s", who, reason)


def report_stream_failed(stream: object, reason: object) -> None:
    """Log that a stream ended before its protocol did."""
    _log.debug("%s failed: %s", stream, reason)


def report_reachability(state: str) -> None:
    """Log whether others can dial this node, as far as is known now."""
    _log.info("this node is %s", state if state != "unknown" else "reachable or not: unknown")


def report_not_found(where: str, error: object) -> None:
    """Log that one way of finding peers does not work, or not just now."""
    _log.debug("finding peers by %s: %s", where, error)
