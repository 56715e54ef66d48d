"""`sbp2p trust`: who may publish what, in the eyes of this node's user.

Shows and changes `trust.json` in the home (keys/README.md, section 8): pins, which are promises
that a publisher may publish under a name; revocations of keys; and the policy for everybody else.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from typer import Argument, Option

from .console import Settings
from .invocation import Invocation
from .options import Home, Json, Quiet, Verbose  # noqa: TC001  (typer evaluates annotations)
from .text import columns, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.node.home import Home as NodeHome
    from sbp2p_keys.identity import PeerId
    from sbp2p_keys.trust import Pin, TrustStore

    from .console import Console

HELP: Final = "Show or change whose versions this node accepts."

POLICIES: Final = {
    "first-use": "a new publisher is asked about, and pinned",
    "pinned-only": "a publisher that is not pinned is refused",
    "any": "everybody is accepted for a name that nobody is pinned for",
}

Name = Annotated[
    str, Argument(metavar="NAME", help="A model's name, or '*' for every name without pins.")
]
Peer = Annotated[str, Argument(metavar="PEER", help="The publisher's peer id.")]


def show(
    home: Home = None, json: Json = False, quiet: Quiet = False, verbose: Verbose = False
) -> Invocation:
    """Show the policy, the pins and the revoked keys."""
    return Invocation(Settings(home, json, quiet, verbose), _show)


def pin(
    name: Name,
    peer: Peer,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Accept a publisher for a name, beside those who are pinned already."""
    return Invocation(Settings(home, json, quiet, verbose), partial(_pin, name=name, peer=peer))


def unpin(
    name: Name,
    peer: Peer,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Take a pin back; a name without pins is open to the next publisher again."""
    return Invocation(Settings(home, json, quiet, verbose), partial(_unpin, name=name, peer=peer))


def revoke(
    peer: Peer,
    reason: Annotated[
        str, Option("--reason", metavar="TEXT", help="Why, to be shown when it is refused.")
    ] = "",
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Refuse a key from now on, for every name and also for what it signed before."""
    work = partial(_revoke, peer=peer, reason=reason)
    return Invocation(Settings(home, json, quiet, verbose), work)


def policy(
    policy: Annotated[
        str,
        Argument(metavar="POLICY", help="first-use, pinned-only or any."),
    ],
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Say what to do about publishers that are neither pinned nor revoked."""
    return Invocation(Settings(home, json, quiet, verbose), partial(_policy, policy=policy))


COMMANDS: Final[dict[str, Callable[..., Invocation]]] = {
    "list": show,
    "pin": pin,
    "unpin": unpin,
    "revoke": revoke,
    "policy": policy,
}


# -- what they do ----------------------------------------------------------------------------------


def _show(console: Console) -> int:
    store = _home(console).trust()
    now = _now()
    console.event(
        "trust",
        policy=store.policy.value,
        pins=[
            {
                "name": name,
                "publisher": str(each.publisher),
                "since": each.since,
                "until": each.until,
                "live": each.publisher in store.publishers(name, now),
            }
            for name, pins in sorted(store.pins.items())
            for each in pins
        ],
        revoked=[
            {"publisher": str(peer), "since": item.since, "reason": item.reason}
            for peer, item in sorted(store.revoked.items())
        ],
    )
    console.result(f"policy  {store.policy.value}: {POLICIES[store.policy.value]}")
    for line in _pin_lines(store, now) + _revoked_lines(store):
        console.result(line)
    return 0


def _pin_lines(store: TrustStore, now: float) -> list[str]:
    if not store.pins:
        return []
    rows = [("NAME", "PUBLISHER", "SINCE", "STATE")]
    for name, pins in sorted(store.pins.items()):
        live = store.publishers(name, now)
        rows += [
            (printable(name), str(each.publisher), _date(each.since), _state(store, each, live))
            for each in pins
        ]
    return ["", *columns(rows)]


def _state(store: TrustStore, pin: Pin, live: frozenset[PeerId]) -> str:
    if pin.publisher in store.revoked:
        return "revoked"
    if pin.publisher not in live:
        return "lapsed"
    return "pinned" if pin.until is None else f"pinned until {_date(pin.until)}"


def _revoked_lines(store: TrustStore) -> list[str]:
    if not store.revoked:
        return []
    rows = [("REVOKED", "SINCE", "REASON")]
    rows += [
        (str(peer), _date(item.since), printable(item.reason))
        for peer, item in sorted(store.revoked.items())
    ]
    return ["", *columns(rows)]


def _pin(console: Console, *, name: str, peer: str) -> int:
    publisher = _peer(peer)
    _check_name(name)
    now = _now()
    store = _home(console).update_trust(lambda store: store.pin(name, publisher, now))
    console.event("pinned", name=name, publisher=str(publisher))
    console.result(f"{printable(name)} is pinned to {publisher}")
    for other in sorted(store.publishers(name, now) - {publisher}):
        console.note(f"it stays pinned to {other}, too: `sbp2p trust unpin` takes that back")
    return 0


def _unpin(console: Console, *, name: str, peer: str) -> int:
    from sbp2p.errors import NotFoundError

    publisher = _peer(peer)

    def change(store: TrustStore) -> TrustStore:
        if publisher not in {each.publisher for each in store.pins.get(name, ())}:
            raise NotFoundError(
                f"{name!r} is not pinned to {publisher}", hint="`sbp2p trust` lists the pins"
            )
        return store.unpin(name, publisher)

    store = _home(console).update_trust(change)
    console.event("unpinned", name=name, publisher=str(publisher))
    console.result(f"{printable(name)} is no longer pinned to {publisher}")
    if name not in store.pins:
        console.note("nobody is pinned for it now: the next publisher may be")
    return 0


def _revoke(console: Console, *, peer: str, reason: str) -> int:
    from sbp2p.errors import ConfigError
    from sbp2p_keys.trust import Revocation

    publisher = _peer(peer)
    now = _now()
    try:
        Revocation(int(now), reason)
    except ValueError as error:
        raise ConfigError(f"--reason: {error}", hint="give a short one, on one line") from error
    store = _home(console).update_trust(lambda store: store.revoke(publisher, now, reason))
    item = store.revoked[publisher]
    console.event("revoked", publisher=str(publisher), since=item.since, reason=item.reason)
    console.result(f"{publisher} is revoked: nothing that it signed is accepted any more")
    if item.reason != reason or item.since != int(now):
        console.note(f"it was revoked before, on {_date(item.since)}: that stays as it is")
    return 0


def _policy(console: Console, *, policy: str) -> int:
    from dataclasses import replace

    from sbp2p.errors import ConfigError
    from sbp2p_keys.trust import TrustPolicy

    if policy not in POLICIES:
        raise ConfigError(f"no such policy: {policy!r}", hint=f"say {', '.join(POLICIES)}")
    wanted = TrustPolicy(policy)
    _home(console).update_trust(lambda store: replace(store, policy=wanted))
    console.event("policy", policy=policy)
    console.result(f"policy  {policy}: {POLICIES[policy]}")
    return 0


def _home(console: Console) -> NodeHome:
    from sbp2p.node.home import Home as NodeHome

    return NodeHome(console.home)


def _peer(text: str) -> PeerId:
    from .serving import parse_peer

    return parse_peer(text)


def _check_name(name: str) -> None:
    from sbp2p.errors import ConfigError
    from sbp2p_keys.trust import ANY_NAME
    from sbp2p_protocol.manifest import check_model_name

    if name != ANY_NAME and (reason := check_model_name(name)) is not None:
        raise ConfigError(f"{name!r} cannot name a model: {reason}", hint="give a model's name")


def _now() -> float:
    import time

    return time.time()  # noqa: TID251  (pins have dates)


def _date(seconds: int) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):  # people edit the file
        return f"{seconds} s after 1970"
