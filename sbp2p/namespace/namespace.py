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
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import ConfigError, PeerUnreachableError
from sbp2p.exchange.unwrap import unwrapped_errors
from sbp2p.roles import Role
from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_protocol.limits import NAMESPACE_DATA_MAX
from sbp2p_protocol.namespace_messages import check_namespace
from sbp2p_protocol.rounds import Rounds, RoundSettings
from sbp2p_protocol.topology import TopologyError, parse_topology

from .bootstrap import bootstrap
from .inbox import Inbox
from .meeting import meet
from .members import Members
from .rounds import Training, weighting_of
from .updates import PLAIN, Updates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from sbp2p.merge.method import Method
    from sbp2p.plugins.plugin import Plugin
    from sbp2p_protocol.multiaddr import Address
    from sbp2p_protocol.round_record import Option
    from sbp2p_protocol.round_weights import Weighting
    from sbp2p_protocol.topology import Topology

    from .host import Host
    from .hub import Hub
    from .values import (
        Bootstrapped,
        Member,
        Message,
        NamespaceEvent,
        Published,
        RoundResult,
    )

_CLOSE_S: Final = 1.0
"""How long goodbyes may take."""


class Namespace:
    """One namespace that a node is in. Made by `Node.namespace`."""

    def __init__(
        self, host: Host, members: Members, inbox: Inbox, training: Training, updates: Updates
    ) -> None:
        self._host = host
        self._members = members
        self._inbox = inbox
        self._training = training
        self._updates = updates
        self._named: dict[str, tuple[Mapping[str, Option], Method]] = {}

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

    @property
    def neighbours(self) -> tuple[PeerId, ...]:
        """Those of them that this node exchanges models with in the next round."""
        return self._training.neighbours()

    @property
    def topology(self) -> Topology:
        """Who is whose neighbour."""
        return self._training.topology

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

    def events(self) -> trio.MemoryReceiveChannel[NamespaceEvent]:
        """Return an async iterator of what happens to members from now on.

        PeerJoined, PeerLeft and RoleChanged, in order; closing it ends the subscription. It ends by
        itself when the namespace does, or when 1024 events wait unread.
        """
        return self._members.listen()

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

    # -- training ---------------------------------------------------------------------------------

    async def publish(self, model: object, *, samples: int = 1) -> Published:
        """Publish a model's state as this node's update of the next round.

        Args:
            model: a plugin, or what `sbp2p.plugins` wraps: a torch module, a dict of arrays...
            samples: how many it was trained on since the last round.

        Raises:
            ConfigError: this node's role is to publish nothing.
            MergeError: something in the model cannot be shared.
            StoreError: the disk failed.
        """
        return await self._training.publish(_wrap(model), samples)

    async def merge(
        self,
        model: object,
        *,
        using: Method | str = "mean",
        options: Mapping[str, Option] | None = None,
        samples: int | None = None,
        deadline_s: float | None = None,
    ) -> RoundResult:
        """Wait for the neighbours' updates of the round, merge them, and load what comes of it.

        What was not published for this round is published first. With no quorum, or nobody there,
        the model stays as it is, and the result says so.

        Args:
            model: as for `publish`; changed in place, all of it or nothing.
            using: the merge method; "mean" mixes by the topology's weights, "fedavg" and the outer
                optimisers count samples, others treat all alike. A name stands for the same method
                round after round, so outer optimisers remember; with other options it is new.
            options: of the method, when it is named.
            samples: what this node's own model counts for; as published if None.
            deadline_s: instead of the namespace's.

        Raises:
            ConfigError: this node's role is to merge nothing.
            MergeError: no such method, or one with other options.
            StoreError: the disk failed.
        """
        settings = self._members.rounds.settings
        if deadline_s is not None:
            settings = replace(settings, deadline_s=deadline_s)
        method, weighting = self._method(using, options or {})
        return await self._training.merge(
            _wrap(model),
            method,
            options=options or {},
            weighting=weighting,
            samples=samples,
            settings=settings,
        )

    async def start_from(self, model: object) -> None:
        """Take a model's state as the base of the next round, for methods that have one.

        The outer optimisers (DiLoCo, FedOpt), clipping and task arithmetic look at what the round
        before ended with. Before the first there is nothing: give the model that all peers start
        from, before it is trained. `bootstrap` does the same with what it loads.
        """
        self._training.base = await self._host.calls.run_to_end(_wrap(model).tensors)

    async def bootstrap(self, model: object, *, timeout_s: float | None = None) -> Bootstrapped:
        """Load the model that the others have got to, and go on from their round.

        Args:
            model: as for `publish`; an empty dict takes whatever there is.
            timeout_s: how long somebody with a model is waited for.

        Raises:
            NotFoundError: nobody had one in time, or none that fits.
        """
        timeout = self._host.config.bootstrap_timeout_s if timeout_s is None else timeout_s
        return await bootstrap(
            self._host, self._members, self._updates, self._training, _wrap(model), timeout
        )

    def _method(
        self, using: Method | str, options: Mapping[str, Option]
    ) -> tuple[Method, Weighting]:
        """Return a merge method, and what its inputs are weighted by.

        One that is named is made once: outer optimisers remember the rounds before.
        """
        from sbp2p.merge.method import get

        if not isinstance(using, str):
            return using, weighting_of(using.name)
        known = self._named.get(using)
        if known is None or known[0] != options:
            method = get("mean" if using == "fedavg" else using, **options)
            known = self._named[using] = (dict(options), method)
        return known[1], weighting_of(using)


def _wrap(model: object) -> Plugin:
    from sbp2p.plugins.registry import wrap

    return wrap(model)


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
    topology: Topology | str = "full",
    peer_filter: Callable[[PeerId], bool] | None = None,
    peers: Sequence[Address] = (),
    settings: RoundSettings | None = None,
    codec: str = PLAIN,
) -> AsyncIterator[Namespace]:
    """Be in a namespace while the block runs; see `Node.namespace`."""
    if (reason := check_namespace(name)) is not None:
        raise ConfigError(f"{name!r} cannot name a namespace: {reason}", hint="give another name")
    try:
        graph = parse_topology(topology) if isinstance(topology, str) else topology
    except TopologyError as error:
        raise ConfigError(str(error), hint="`sbp2p topology --help` lists them") from error
    rounds = Rounds(host.peer_id, settings or RoundSettings())
    inbox = Inbox()
    members = Members(host, name, inbox, role=Role(role), rounds=rounds, peer_filter=peer_filter)
    updates = Updates(host, name, codec)
    members.round = await updates.last_round()
    training = Training(host, members, updates, graph)
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            hub.join(name, members)
            try:
                nursery.start_soon(meet, host, members, peers)
                yield Namespace(host, members, inbox, training, updates)
            finally:
                hub.leave(name)
                deadline = trio.current_time() + _CLOSE_S
                with trio.CancelScope(deadline=deadline, shield=True):
                    for link in members.close("this node leaves"):
                        await link.ended.wait()
                inbox.close()
                nursery.cancel_scope.cancel()
