"""A namespace as users of the library hold it: nodes that train one model together.

    async with node.namespace("digits", peers=[...]) as ns:
        await ns.wait_for_peers(3)
        for samples in shards:
            train(model, samples)
            await ns.publish(model, samples=len(samples))
            result = await ns.merge(model, using="mean")

Theory of operation: protocol/namespace.md tells what goes over the wire; members.py, updates.py,
rounds.py and bootstrap.py each drive a part of it, and this gathers them. One publish and then one
merge is a round. Everything runs in the namespace's own nursery and ends with its block.

Errors: the Sbp2pError tree; ValueError and TypeError for arguments that no call can mean.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import ConfigError, PeerUnreachableError
from sbp2p.exchange.unwrap import unwrapped_errors
from sbp2p.roles import Role
from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.limits import NAMESPACE_DATA_MAX
from sbp2p_protocol.namespace_messages import check_namespace

from .inbox import Inbox
from .meeting import meet
from .members import Members

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from sbp2p_protocol.multiaddr import Address

    from .host import Host
    from .hub import Hub
    from .values import Member, Message, NamespaceEvent

_CLOSE_S: Final = 1.0
"""How long goodbyes may take."""


class Namespace:
    """One namespace that a node is in. Made by `Node.namespace`."""

    def __init__(self, host: Host, members: Members, inbox: Inbox) -> None:
        self._host = host
        self._members = members
        self._inbox = inbox

    def __repr__(self) -> str:
        return f"<Namespace {self.name!r} with {len(self._members)} members>"

    # -- who is in it -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What it is called; the model that is published in it is called the same."""
        return self._members.name

    @property
    def peer_id(self) -> PeerId:
        """Who this node is in it."""
        return self._host.peer_id

    @property
    def role(self) -> Role:
        """What this node does for members that no rule of their own names."""
        return self._members.role

    @property
    def round(self) -> int:
        """The last round that this node has finished; 0 before the first."""
        return self._members.round

    @property
    def members(self) -> tuple[Member, ...]:
        """The other nodes that are in it now, by peer id."""
        return tuple(self._members)

    async def wait_for_peers(
        self, wanted: int | Iterable[PeerId | str], *, timeout_s: float | None = None
    ) -> tuple[Member, ...]:
        """Wait until so many members, or these, are there; return all that are.

        Args:
            wanted: how many others, or which.
            timeout_s: give up after this; never if None.

        Raises:
            PeerUnreachableError: the time is over; says who is missing.
        """
        count = wanted if isinstance(wanted, int) else 0
        ids = set() if isinstance(wanted, int) else {_peer_id(each) for each in wanted}
        with trio.move_on_after(float("inf") if timeout_s is None else timeout_s) as scope:
            await trio.lowlevel.checkpoint()
            while len(self._members) < count or not all(map(self._members.__contains__, ids)):
                await self._members.changed.park()
        if scope.cancelled_caught:
            raise self._absent(count, [each for each in ids if each not in self._members])
        return self.members

    def _absent(self, count: int, missing: list[PeerId]) -> PeerUnreachableError:
        what = f"{len(self._members)} of {count} members of {self.name!r} are here"
        if missing:
            what = "not in the namespace yet: " + ", ".join(map(str, sorted(missing)))
        reasons = self._members.contacts.failures()
        return PeerUnreachableError(
            what,
            hint=reasons[0] if reasons else "give the address of one that is, with peers=[...]",
        )

    def change_role(self, role: Role | str, *, peer: PeerId | str | None = None) -> None:
        """Do something else from now on: for a peer if one is named, else for all others."""
        self._members.change_role(Role(role), None if peer is None else _peer_id(peer))

    async def events(self) -> AsyncIterator[NamespaceEvent]:
        """Yield what happens to members from now on: PeerJoined, PeerLeft, RoleChanged.

        Ends when the namespace does, or when 1024 events wait unread.
        """
        with self._members.listen() as events:
            async for event in events:
                yield event

    # -- messages ---------------------------------------------------------------------------------

    async def send_to(self, peer: PeerId | str, data: bytes) -> None:
        """Send bytes to a member; returns once they wait for its `receive`, in order.

        Waits while the member does not take what it was sent before.

        Raises:
            PeerUnreachableError: it is not here, or left before it had them.
            ValueError: more than 1 MiB.
        """
        if len(data) > NAMESPACE_DATA_MAX:
            raise ValueError(f"{len(data)} bytes in one message: at most {NAMESPACE_DATA_MAX}")
        await self._members.link(_peer_id(peer)).send(bytes(data))

    async def receive(self) -> Message:
        """Wait for the next message of a member, in the order of their arrival."""
        return await self._inbox.take()


def _peer_id(peer: PeerId | str) -> PeerId:
    if isinstance(peer, PeerId):
        return peer
    try:
        return PeerId.parse(peer)
    except KeysError as error:
        raise ConfigError(
            f"{peer!r} is no peer id: {error}", hint="it looks like 12D3KooW..."
        ) from error


@asynccontextmanager
async def open_namespace(
    host: Host,
    hub: Hub,
    name: str,
    *,
    role: Role | str = Role.PEER,
    peer_filter: Callable[[PeerId], bool] | None = None,
    peers: Sequence[Address] = (),
) -> AsyncIterator[Namespace]:
    """Be in a namespace while the block runs; see `Node.namespace`."""
    if (reason := check_namespace(name)) is not None:
        raise ConfigError(f"{name!r} cannot name a namespace: {reason}", hint="give another name")
    inbox = Inbox()
    members = Members(host, name, inbox, role=Role(role), peer_filter=peer_filter)
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            hub.join(name, members)
            try:
                nursery.start_soon(meet, host, members, peers)
                yield Namespace(host, members, inbox)
            finally:
                hub.leave(name)
                deadline = trio.current_time() + _CLOSE_S
                with trio.CancelScope(deadline=deadline, shield=True):
                    for link in members.close("this node leaves"):
                        await link.ended.wait()
                inbox.close()
                nursery.cancel_scope.cancel()
