"""What the owner of a private swarm does: `sbp2p swarm create`, `invite`, `revoke`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .swarm_member import format_date, now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p_keys.membership import Capability

    from .console import Console

_UNITS: Final = {"h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600, "y": 365 * 24 * 3600}


def parse_expires(text: str, now: float) -> int:
    """Return the end of a membership in seconds since 1970; raises ConfigError."""
    from datetime import UTC, date, datetime, time, timedelta

    from sbp2p.errors import ConfigError

    hint = "say 12h, 90d, 2w or 1y, or a date such as 2031-12-31"
    match = re.fullmatch(r"([1-9]\d{0,5})([hdwy])", text)
    if match is not None:
        return int(now) + int(match[1]) * _UNITS[match[2]]
    try:
        day = date.fromisoformat(text)
        end = datetime.combine(day + timedelta(days=1), time(), UTC).timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(f"--expires {text!r} is no time span and no date", hint=hint) from None
    if end <= now:
        raise ConfigError(f"--expires {text} is over", hint=hint)
    return int(end)


def create(console: Console, *, expires: str) -> int:
    """Create a swarm that this home owns."""
    from sbp2p.node.home import Home
    from sbp2p.node.swarm_home import SwarmHome

    from .session import unlocked

    home = Home(console.home)
    end = parse_expires(expires, now())

    def attempt(passphrase: bytes | None) -> int:
        me = home.identity(passphrase).peer_id
        swarm = SwarmHome(home).create(me, passphrase, now=now(), expires=end)
        console.event("swarm_created", owner=str(swarm.owner), member=str(me), expires=end)
        console.result(f"created the private swarm of {swarm.owner}")
        console.result(f"  this node is a member until {format_date(end)}, and in no other network")
        console.note(f"whoever has {SwarmHome(home).folder} owns it: keep a copy in a safe place")
        console.note("`sbp2p swarm invite PEER` lets others in")
        return 0

    return unlocked(console, attempt)


def invite(
    console: Console,
    *,
    peer: str,
    expires: str,
    to: str | None,
    only: str | None,
    peers: Sequence[str],
) -> int:
    """Write an invitation."""
    from pathlib import Path

    from sbp2p.errors import ConfigError, TrustError
    from sbp2p.node.home import Home
    from sbp2p.node.swarm_home import SwarmHome
    from sbp2p_keys.errors import FileExistsAlreadyError, KeysError
    from sbp2p_keys.swarm_file import save_swarm_file

    from .serving import parse_peer
    from .session import unlocked

    member, end, may = parse_peer(peer), parse_expires(expires, now()), _capabilities(only)
    _check_addresses(peers)
    home = SwarmHome(Home(console.home))
    path = Path(to if to is not None else f"{member.short()}.swarm")
    if path.exists():
        raise ConfigError(f"{path} is there already", hint="choose another with --to")

    def attempt(passphrase: bytes | None) -> int:
        swarm = home.invite(
            member, passphrase, now=now(), expires=end, capabilities=may, peers=peers
        )
        try:
            save_swarm_file(path, swarm, overwrite=False)
        except FileExistsAlreadyError as error:
            raise ConfigError(str(error)) from error
        except KeysError as error:
            raise TrustError(str(error)) from error
        serial = swarm.read_certificate().serial
        console.event(
            "invited", file=str(path), peer=str(member), serial=serial, expires=end, may=may.value
        )
        console.result(f"{member} is invited until {format_date(end)}")
        console.result(f"  {path}")
        console.note("send it on a way that nobody else can read; `sbp2p swarm join` takes it")
        if not peers:
            console.note("it names no member's address: use --peer, or a link with ?peer=")
        return 0

    return unlocked(console, attempt)


def revoke(console: Console, *, peer: str) -> int:
    """Revoke the membership of a peer."""
    from sbp2p.node.home import Home
    from sbp2p.node.swarm_home import SwarmHome

    from .serving import parse_peer
    from .session import unlocked

    member = parse_peer(peer)
    home = SwarmHome(Home(console.home))

    def attempt(passphrase: bytes | None) -> int:
        known = {each.peer for each in home.invited()}
        revocations = home.revoke(member, passphrase).read_revocations()
        console.event(
            "membership_revoked",
            peer=str(member),
            serial=revocations.members[member],
            number=revocations.number,
        )
        console.result(f"{member} is no member any more")
        if member not in known:
            console.note("it was never invited from here")
        console.note("nodes hear of it when this one runs and meets them")
        return 0

    return unlocked(console, attempt)


def _capabilities(only: str | None) -> Capability:
    from sbp2p.errors import ConfigError
    from sbp2p_keys.membership import EVERYTHING, Capability

    choices = {None: EVERYTHING, "send": Capability.SEND, "receive": Capability.RECEIVE}
    if only not in choices:
        raise ConfigError(f"--only {only!r}: no such thing", hint="say send or receive")
    return choices[only]


def _check_addresses(texts: Sequence[str]) -> None:
    from sbp2p.discovery import parse_bootstrap

    parse_bootstrap(texts)
