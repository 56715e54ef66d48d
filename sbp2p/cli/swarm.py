"""`sbp2p swarm`: a private swarm, whose members alone meet each other.

What the commands do is in `swarm_owner.py`, for who creates one and invites, and in
`swarm_member.py`, for who was invited.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from typer import Argument, Option

from . import swarm_member, swarm_owner
from .console import Settings
from .invocation import Invocation
from .options import Home, Json, Quiet, Verbose  # noqa: TC001  (typer evaluates annotations)

if TYPE_CHECKING:
    from collections.abc import Callable

HELP: Final = "Create a private swarm, invite to it, or join one."

Expires = Annotated[
    str,
    Option(
        "--expires",
        metavar="WHEN",
        help="How long it holds, such as 12h, 90d or 2w, or its last day, such as 2031-12-31.",
    ),
]
Peer = Annotated[str, Argument(metavar="PEER", help="The peer id, as `sbp2p id` shows it there.")]


def show(
    home: Home = None, json: Json = False, quiet: Quiet = False, verbose: Verbose = False
) -> Invocation:
    """Show the private swarm that this node is in and, to its owner, whom it invited."""
    return Invocation(Settings(home, json, quiet, verbose), swarm_member.show)


def create(
    expires: Expires = "365d",
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Create a private swarm that this home owns; this node is its first member."""
    work = partial(swarm_owner.create, expires=expires)
    return Invocation(Settings(home, json, quiet, verbose), work)


def invite(
    peer: Peer,
    expires: Expires = "90d",
    to: Annotated[
        str | None,
        Option(
            "--to",
            metavar="FILE",
            help="The file to write. Default: the end of the peer id and .swarm, here.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None,
        Option(
            "--only",
            metavar="WHAT",
            help="send or receive: what the member may do, and nothing else.",
            show_default=False,
        ),
    ] = None,
    peers: Annotated[
        list[str] | None,
        Option(
            "--peer",
            metavar="ADDR",
            help="Where the invited node finds a member (multiaddr ending in /p2p/ID). Repeatable.",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Write the file that makes a peer a member; give it to nobody else."""
    work = partial(
        swarm_owner.invite, peer=peer, expires=expires, to=to, only=only, peers=tuple(peers or ())
    )
    return Invocation(Settings(home, json, quiet, verbose), work)


def revoke(
    peer: Peer,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Put a member out; running nodes hear of it from this one, and from each other."""
    return Invocation(Settings(home, json, quiet, verbose), partial(swarm_owner.revoke, peer=peer))


def join(
    file: Annotated[str, Argument(metavar="FILE", help="What `sbp2p swarm invite` wrote.")],
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Be in the private swarm of an invitation from now on, and in no other network."""
    return Invocation(Settings(home, json, quiet, verbose), partial(swarm_member.join, file=file))


def leave(
    home: Home = None, json: Json = False, quiet: Quiet = False, verbose: Verbose = False
) -> Invocation:
    """Be in the public network again."""
    return Invocation(Settings(home, json, quiet, verbose), swarm_member.leave)


COMMANDS: Final[dict[str, Callable[..., Invocation]]] = {
    "show": show,
    "create": create,
    "invite": invite,
    "revoke": revoke,
    "join": join,
    "leave": leave,
}
