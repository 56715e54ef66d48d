"""What a member of a private swarm does: `sbp2p swarm show`, `join`, `leave`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .text import columns

if TYPE_CHECKING:
    from sbp2p.node.swarm_home import Invited
    from sbp2p_keys.membership import Capability, Certificate, Revocations

    from .console import Console


def now() -> float:
    """Return seconds since 1970."""
    import time

    return time.time()  # noqa: TID251  (certificates have dates)


def format_date(seconds: float) -> str:
    """Return a date for people."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s after 1970"


def show(console: Console) -> int:
    """Show the swarm of this home."""
    from sbp2p.node.home import Home
    from sbp2p.node.swarm_home import SwarmHome
    from sbp2p_keys.membership import network_id

    home = SwarmHome(Home(console.home))
    swarm = home.member()
    if swarm is None:
        console.event("swarm", private=False)
        console.result("public network: this node belongs to no private swarm")
        return 0
    certificate, revocations = swarm.read_certificate(), swarm.read_revocations()
    state, invited = _state(certificate, revocations), home.invited()
    console.event(
        "swarm",
        private=True,
        owner=str(swarm.owner),
        network=network_id(swarm.owner),
        member=str(certificate.member),
        state=state,
        expires=certificate.expires,
        capabilities=certificate.capabilities.value,
        revocations=revocations.number,
        is_owner=home.is_owner,
        members=[
            {
                "peer": str(each.peer),
                "serial": each.serial,
                "expires": each.expires,
                "state": _state_of(each, revocations),
            }
            for each in invited
        ],
    )
    console.result(f"owner    {swarm.owner}{', whose key is here' if home.is_owner else ''}")
    console.result(f"member   {certificate.member}: {state}, {_may(certificate.capabilities)}")
    console.result(f"until    {format_date(certificate.expires)}")
    console.result(f"network  {network_id(swarm.owner)}")
    if invited:
        rows = [("MEMBER", "UNTIL", "STATE")]
        rows += [
            (str(each.peer), format_date(each.expires), _state_of(each, revocations))
            for each in invited
        ]
        for line in ["", *columns(rows)]:
            console.result(line)
    return 0


def join(console: Console, *, file: str) -> int:
    """Be a member by an invitation."""
    from pathlib import Path

    from sbp2p.node.home import Home
    from sbp2p.node.swarm_home import SwarmHome

    from .session import unlocked

    home = Home(console.home)

    def attempt(passphrase: bytes | None) -> int:
        me = home.identity(passphrase).peer_id
        swarm = SwarmHome(home).join(Path(file).expanduser(), me)
        certificate = swarm.read_certificate()
        console.event("joined", owner=str(swarm.owner), member=str(me), expires=certificate.expires)
        console.result(f"joined the private swarm of {swarm.owner}")
        console.result(f"  a member until {format_date(certificate.expires)}")
        console.note("this node now meets members only, whatever command it runs")
        return 0

    return unlocked(console, attempt)


def leave(console: Console) -> int:
    """Be in the public network again."""
    from sbp2p.node.home import Home
    from sbp2p.node.swarm_home import SwarmHome

    swarm = SwarmHome(Home(console.home)).leave()
    console.event("left", owner=str(swarm.owner))
    console.result(f"left the private swarm of {swarm.owner}")
    return 0


def _state(certificate: Certificate, revocations: Revocations) -> str:
    from sbp2p_keys.errors import NotAMemberError
    from sbp2p_keys.membership import check_member

    try:
        check_member(certificate.member, certificate, None, revocations, now())
    except NotAMemberError as error:
        return error.problem.value
    return "member"


def _state_of(each: Invited, revocations: Revocations) -> str:
    if each.serial <= revocations.members.get(each.peer, 0):
        return "revoked"
    return "expired" if now() >= each.expires else "member"


def _may(capabilities: Capability) -> str:
    from sbp2p_keys.membership import Capability

    words = {Capability.SEND: "may send", Capability.RECEIVE: "may receive"}
    return " and ".join(word for bit, word in words.items() if bit in capabilities) or "may nothing"
