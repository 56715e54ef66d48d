"""What is right and wrong with this node: whether it can find others, and be found by them.

Theory of operation. Each check looks at one thing, for `wait_s` at most, and says in a `Verdict`
what it saw, how bad that is, and what to do next. `check_machine` needs no node.

| level | means |
|---|---|
| OK | as it should be |
| WARN | works, but not for everybody or not for long |
| BAD | keeps this node from finding others, or others from it |

Error cases: none leaves. What a check trips over is its finding.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.discovery import Origin, Reachability
from sbp2p.errors import Sbp2pError
from sbp2p_protocol.address_scope import Scope, scope_of
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.peer_record import open_peer_record

if TYPE_CHECKING:
    from sbp2p_keys.identity import PrivateKey
    from sbp2p_protocol.multiaddr import Address

    from .home import Home
    from .node import Node

GB: Final = 10**9
DISK_WARN: Final = 1 * GB
DISK_BAD: Final = GB // 10
FILES_WARN: Final = 1024
"""File descriptors: 256 connections, 64 files, the index, and room for dials."""
CLOCK_TOLERANCE_S: Final = 300.0
_NS: Final = 10**9
_FIRST_DATE: Final = 1_735_689_600
"""2025-01-01, before there was a version of sbp2p: a clock that shows less was never set."""
_SHOWN: Final = 4


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found."""

    topic: str
    level: Level
    text: str
    next_step: str = ""


def ok(topic: str, text: str) -> Verdict:
    """Return a finding that nothing is to be done about."""
    return Verdict(topic, Level.OK, text)


def warn(topic: str, text: str, next_step: str) -> Verdict:
    """Return a finding that does some harm."""
    return Verdict(topic, Level.WARN, text, next_step)


def bad(topic: str, text: str, next_step: str) -> Verdict:
    """Return a finding that breaks something."""
    return Verdict(topic, Level.BAD, text, next_step)


# -- without a node --------------------------------------------------------------------------------


def check_key(home: Home, passphrase: bytes | None) -> tuple[Verdict, PrivateKey | None]:
    """Look at the home and its key, which is made if there is none."""
    try:
        key = home.identity(passphrase)
    except Sbp2pError as error:
        step = error.hint or "check who owns the home, or give another one with --home"
        return bad("key", str(error), step), None
    return ok("key", f"this node is {key.peer_id}, its home {home.path}"), key


def check_machine(home: Home, now: float) -> list[Verdict]:
    """Look at the clock, the disk and the limits of this process. `now` is Unix seconds."""
    return [_check_clock(home, now), _check_disk(home), *_check_files()]


def _check_clock(home: Home, now: float) -> Verdict:
    step = "set the clock: records that are signed with a wrong date are refused by others"
    made_at = home.key_path.stat().st_mtime if home.key_path.exists() else 0.0
    if now < _FIRST_DATE:
        return bad("clock", "the clock was never set", step)
    if made_at > now + CLOCK_TOLERANCE_S:
        ahead = round(made_at - now)
        return bad("clock", f"the key was made {ahead} s after the time that the clock shows", step)
    return ok("clock", "nothing here is from the future")


def _check_disk(home: Home) -> Verdict:
    free = shutil.disk_usage(home.path).free
    text = f"{free / GB:.1f} GB free at the home"
    step = "make room: what is fetched, and the index, need it"
    if free < DISK_BAD:
        return bad("disk", text, step)
    return warn("disk", text, step) if free < DISK_WARN else ok("disk", text)


def _check_files() -> list[Verdict]:
    if sys.platform == "win32":
        return []
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} files and sockets may be open at once"
    if soft != resource.RLIM_INFINITY and soft < FILES_WARN:
        return [warn("files", text, f"raise the limit: ulimit -n {4 * FILES_WARN}")]
    return [ok("files", text)]


# -- how this node stands in the network -----------------------------------------------------------


def check_identity(node: Node) -> Verdict:
    """Say whether this is the only process of its home."""
    if node.ephemeral:
        return ok("process", "another process runs as this node; this look uses a throw-away id")
    return ok("process", "no other process runs as this node")


def check_addresses(node: Node) -> list[Verdict]:
    """Look at where this node listens and what it tells others."""
    listening = [each.without_peer() for each in node.addresses]
    if not listening:
        step = "give --listen, and see that the port is free"
        return [bad("listening", "this node listens nowhere: nobody can dial it", step)]
    verdicts = [ok("listening", f"on {_listed(listening)}")]
    announced = [each.without_peer() for each in node.swarm.announced_addresses()]
    scopes = {scope_of(each) for each in announced}
    if not announced or scopes == {Scope.HERE}:
        step = "listen on an address of the network: --listen /ip4/0.0.0.0/tcp/4801"
        verdicts.append(warn("addresses", "only programs on this machine can dial this node", step))
    elif Scope.PUBLIC not in scopes:
        step = "for others than those on this network, forward the port on the router"
        text = f"only private ones: {_listed(announced)}"
        verdicts.append(warn("addresses", text, step))
    else:
        verdicts.append(ok("addresses", f"announced are {_listed(announced)}"))
    return verdicts


async def check_bootstrap(node: Node, addresses: list[Address], wait_s: float) -> list[Verdict]:
    """Dial each bootstrap peer by itself."""
    if not addresses:
        step = "name a node that is always there: --bootstrap ADDR, or $SBP2P_BOOTSTRAP"
        return [warn("bootstrap", "no bootstrap peer is set", step)]
    found: list[Verdict] = []

    async def look(address: Address) -> None:
        found.append(await _check_bootstrap(node, address, wait_s))

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(look, address)
    return found


async def _check_bootstrap(node: Node, address: Address, wait_s: float) -> Verdict:
    started = trio.current_time()
    with trio.move_on_after(wait_s):
        try:
            await node.swarm.connect([address])
        except Sbp2pError as error:
            step = error.hint or "check the address, or use another bootstrap peer"
            return bad("bootstrap", str(error), step)
        milliseconds = 1000 * (trio.current_time() - started)
        return ok("bootstrap", f"{address} answered within {milliseconds:.0f} ms")
    step = "check the address, and that no firewall is in the way"
    return bad("bootstrap", f"{address}: no answer within {wait_s:g} s", step)


async def check_lan(node: Node, wait_s: float) -> list[Verdict]:
    """Ask by multicast, and hear oneself at least."""
    lan = node.discovery.lan
    if lan is None:
        return [warn("LAN", "multicast is off", "leave out --no-lan to find peers nearby")]
    lan.ask_now()
    with trio.move_on_after(wait_s):
        while not lan.heard or not node.discovery.known(Origin.LAN):
            await lan.wait_heard()
    verdicts = [
        warn("LAN", f"multicast on {link}: {reason}", "see whether a firewall forbids it")
        for link, reason in lan.failures.items()
    ]
    links = ", ".join(str(each) for each in lan.links)
    step = "see that the network, and any firewall here, lets UDP port 5353 multicast through"
    if not lan.links:
        verdicts.append(warn("LAN", "no interface of this machine carries multicast", step))
    elif not lan.heard:
        text = f"not even this node's own question came back on {links}"
        verdicts.append(warn("LAN", text, step))
    else:
        count = len(node.discovery.known(Origin.LAN))
        peers = "1 peer" if count == 1 else f"{count} peers"
        verdicts.append(ok("LAN", f"multicast works on {links}; {peers} answered"))
    return verdicts


async def check_dht(node: Node, wait_s: float) -> Verdict:
    """See whether the DHT has anybody."""
    dht = node.dht
    if dht is None:
        return warn("DHT", "it is off", "leave it on to find peers by name")
    with trio.move_on_after(wait_s):
        await node.discovery.wait_tried()
        if node.swarm.peers():
            await dht.wait_settled()
    contacts = len(dht.peers())
    if not contacts:
        step = "without a first peer nothing is found: give --bootstrap, or a link with ?peer="
        level = Level.BAD if node.discovery.known() else Level.WARN
        return Verdict("DHT", level, f"{dht.mode} of {dht.name}, which knows nobody", step)
    return ok("DHT", f"{dht.mode} of {dht.name} with {contacts} contacts")


async def check_reachability(node: Node, wait_s: float) -> Verdict:
    """Say what peers that were asked to dial this node answered."""
    discovery = node.discovery
    known = trio.Event()
    discovery.on_reachability(lambda state: None if state is Reachability.UNKNOWN else known.set())
    if node.swarm.peers():
        with trio.move_on_after(wait_s):
            await known.wait()
    reached, failed = discovery.reachability_counts
    text = f"{reached} reached this node, {failed} failed to"
    match discovery.reachability:
        case Reachability.REACHABLE:
            return ok("reachable", f"yes: {text}" if reached else "yes: a peer dialled this node")
        case Reachability.UNREACHABLE if node.addresses:
            step = "open the port in the firewall, or forward it on the router"
            return bad("reachable", f"no: {text} ({discovery.reachability_reason})", step)
        case Reachability.UNREACHABLE:
            return bad("reachable", "no: it does not listen", "give --listen")
    step = "it takes four peers of other networks to tell; a seed finds out while it runs"
    return warn("reachable", f"not known: {text}", step)


def check_peers_clocks(node: Node, now: float) -> list[Verdict]:
    """Compare the clock with the dates of what peers have signed. `now` is Unix seconds."""
    newest = 0.0
    for peer_id in node.swarm.peers():
        said = node.swarm.identified(peer_id)
        if said is not None and said.signed_peer_record is not None:
            try:
                record = open_peer_record(said.signed_peer_record)
            except RemoteProtocolError:
                continue
            newest = max(newest, record.seq / _NS)
    if newest <= now + CLOCK_TOLERANCE_S or newest > 2 * now:  # not every peer counts nanoseconds
        return []
    step = "set the clock: records that are signed with a wrong date are refused by others"
    return [warn("clock", f"a peer's clock is {round(newest - now)} s ahead of this one", step)]


def _listed(addresses: list[Address]) -> str:
    texts = [each.text for each in addresses[:_SHOWN]]
    more = len(addresses) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "")
