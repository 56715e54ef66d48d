"""What a fetch says on the command line: what `get` and `follow` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .text import format_bytes, format_count, format_duration, format_rate, printable

if TYPE_CHECKING:
    from sbp2p.node import FetchResult, Node, TrustCallback
    from sbp2p_protocol.manifest import Manifest

    from .console import Console


async def tell_connections(console: Console, node: Node) -> None:
    """Report each peer that this node gets connected to."""
    from sbp2p.swarm import PeerConnected

    with node.swarm.subscribe() as events:
        async for event in events:
            if isinstance(event, PeerConnected):
                console.event("connected", peer=str(event.peer_id))
                console.note(f"connected to {event.peer_id}")


def who_trusts(console: Console, trust_new: bool) -> TrustCallback:
    """Return who decides about publishers that are new here."""
    from sbp2p.node import accept_new, refuse_new

    from .session import ask

    async def ask_user(manifest: Manifest, reason: str) -> bool:
        console.complain(printable(f"{manifest.name} is published by {manifest.publisher},"))
        console.complain("who is new here. Check the peer id with its owner.")
        return await ask(console, "Trust it for this name from now on?")

    if trust_new:
        return accept_new
    return ask_user if console.can_ask else refuse_new


def fields(result: FetchResult) -> dict[str, Any]:
    """Return a finished fetch as the fields of an event."""
    version = result.version
    return {
        "cid": str(version.cid),
        "name": version.name,
        "version": version.version,
        "publisher": str(version.publisher),
        "destination": str(result.destination),
        "complete": version.complete,
        "files": result.files,
        "total_bytes": result.total_bytes,
        "network_bytes": result.network_bytes,
        "local_bytes": result.local_bytes,
        "resumed_bytes": result.resumed_bytes,
        "seconds": round(result.seconds, 6),
        "transfer_seconds": round(result.transfer_seconds, 6),
        "peers": [{"peer": str(peer), "bytes": count} for peer, count in result.peers],
        "web_seeds": [
            {"url": each.url, "bytes": each.bytes_received, "dropped": each.dropped}
            for each in result.web_seeds
        ],
        "part_files": {path: str(part) for path, part in result.part_files},
    }


def summary(result: FetchResult) -> list[str]:
    """Return a finished fetch as lines for people."""
    version = result.version
    title = printable(f"{version.name} version {version.version}")
    whole = format_count(result.files, "whole file")
    lines = [
        f"fetched {title} to {printable(str(result.destination))}",
        f"  {format_bytes(result.total_bytes)} verified, {whole}, "
        f"in {format_duration(result.seconds)}",
    ]
    parts = []
    if result.network_bytes:
        network = f"{format_bytes(result.network_bytes)} from "
        network += format_count(len(result.peers), "peer")
        if used := sum(each.bytes_received > 0 for each in result.web_seeds):
            network += f" and {format_count(used, 'web seed')}"
        if result.transfer_seconds > 0:
            network += f" at {format_rate(result.network_bytes / result.transfer_seconds)}"
        parts.append(network)
    if result.local_bytes:
        parts.append(f"{format_bytes(result.local_bytes)} from other files here")
    if result.resumed_bytes:
        parts.append(f"{format_bytes(result.resumed_bytes)} were here already")
    if parts:
        lines.append(f"  {'; '.join(parts)}")
    for path, part in result.part_files:
        where = printable(str(part))
        lines.append(f"  part of {printable(path)}: {where}")
    return lines
