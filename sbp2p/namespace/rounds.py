"""The rounds of a node: publish, wait, fetch, merge, write down. Drives `sbp2p_protocol.rounds`.

Theory of operation. The machine decides what is waited for and until when; this fetches what it
wants, several at a time, and tells it how that went. When the round closes, fetches that still run
are cancelled: what they got stays, and is gone on with in the next round.

    publish   the plugin's tensors become this node's update of the next round
    collect   until the machine closes the round
    merge     in a worker thread; the plugin gets the result, or keeps what it has
    record    a signed version of `<namespace>/rounds`, and old rounds are removed

A round's number. A node's next round is the one after its last; but if more than half of the
members that publish are beyond it, it is the one that these are in: who was away for a while, or is
slow, joins the others. After a restart a node goes on from what its store has.

What an update is weighted by hangs on the method: "mean" mixes by the topology's weights, which
keep the mean of all models what it is; FedAvg and the outer optimisers count samples; methods that
look for outliers count every model alike.

Who was absent for `absent_rounds` rounds is not waited for, as if it had just joined, until an
update of it comes.

Error cases: what a peer does is named in `RoundResult.rejected`, never raised. A merge that cannot
be done with what is there (`MergeError`) leaves the model as it was, and says why in the result.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import ConfigError, MergeError, Sbp2pError
from sbp2p.merge.tensors import MemorySource
from sbp2p.roles import Role
from sbp2p.swarm import VIOLATION_POINTS
from sbp2p_protocol.limits import NAMESPACE_SAMPLES_MAX
from sbp2p_protocol.round_weights import Weighting, weigh
from sbp2p_protocol.rounds import Close, CloseReason, NeighbourState, Wait
from sbp2p_protocol.topology import full

from .record import record_of, write_down
from .updates import Model, OwnUpdate, UnfitError
from .values import Contribution, Published, Rejection, RoundResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from sbp2p.checkpoint.reader import RawTensor
    from sbp2p.merge.method import Method
    from sbp2p.merge.tensors import TensorSpec
    from sbp2p.plugins.plugin import Plugin
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.round_record import Option
    from sbp2p_protocol.rounds import Rounds, RoundSettings, Taken
    from sbp2p_protocol.rounds import Update as Wanted
    from sbp2p_protocol.topology import Topology

    from .host import Host
    from .members import Members
    from .merging import Merged
    from .updates import Updates

_JUMP_MAX: Final = 10_000
"""Rounds that this node goes forward at once, because others say that they are there."""
DIVERGED_POINTS: Final = 10
"""Penalty for a model that is not finite: it may be no more than a learning rate."""
_MIXING: Final = frozenset({"mean"})
_BY_SAMPLES: Final = frozenset(
    {"fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedprox", "diloco"}
)


def weighting_of(method: str) -> Weighting:
    """Return what the inputs of a method are weighted by."""
    if method in _MIXING:
        return Weighting.MIXING
    return Weighting.SAMPLES if method in _BY_SAMPLES else Weighting.EQUAL


def _first_base(method: Method) -> str:
    """Return what a base is made by where no round has left one: alike at every peer."""
    return "mean" if weighting_of(method.name) is Weighting.SAMPLES else "median"


@dataclass(slots=True)
class _Gathered:
    """What a round has got so far."""

    models: dict[Cid, Model]
    """By manifest: a late update may come when a newer one of its peer is here already."""
    fetching: set[tuple[PeerId, bytes]]
    bytes_received: int = 0


class Training:
    """The rounds of one namespace at one node.

    Args:
        host: the node.
        members: who is in the namespace; has the machine.
        updates: what publishes and fetches.
        topology: who is whose neighbour.
    """

    def __init__(self, host: Host, members: Members, updates: Updates, topology: Topology) -> None:
        self.topology = topology
        self.base: Mapping[str, RawTensor] | None = None
        """What the last round, a bootstrap, or the user's word left: the base of methods that need
        one. Without any it is made of the first round's inputs."""
        self._host = host
        self._members = members
        self._updates = updates
        self._own: OwnUpdate | None = None
        self._turn = trio.Lock()
        self._announced_at = trio.current_time()
        self._announced: Cid | None = None
        self._absent: Counter[PeerId] = Counter()
        """For how many rounds nothing has come of a neighbour."""
        self._places = trio.Semaphore(host.config.parallel_fetches)

    @property
    def rounds(self) -> Rounds:
        """The machine."""
        return self._members.rounds

    def neighbours(self, number: int | None = None) -> tuple[PeerId, ...]:
        """Return the members that this node exchanges models with in a round, sorted."""
        number = self._next_round() if number is None else number
        everybody = [*self._members.senders(), self._host.peer_id]
        return tuple(sorted(self.topology.neighbours(self._host.peer_id, everybody, number)))

    def _next_round(self) -> int:
        """Return the number of the round that begins now."""
        own = 0 if self._own is None else self._own.update.round
        following = max(self._members.round, own, self.rounds.number) + 1
        there = sorted(map(self._members.reached, self._members.senders()), reverse=True)
        if there:  # so many are more than half
            following = max(following, min(there[len(there) // 2], following + _JUMP_MAX))
        return following

    # -- publishing -------------------------------------------------------------------------------

    async def publish(self, plugin: Plugin, samples: int) -> Published:
        """Publish a model as this node's update of the next round."""
        async with self._turn:
            return await self._publish(plugin, samples)

    async def _publish(self, plugin: Plugin, samples: int) -> Published:
        role = self._members.role
        if not role.sends:
            raise ConfigError(
                f"this node's role in the namespace is {role.value}: it does not publish",
                hint="change its role to peer or seed",
            )
        if not 1 <= samples <= NAMESPACE_SAMPLES_MAX:
            raise ValueError(f"{samples} samples: from 1 to {NAMESPACE_SAMPLES_MAX}")
        number = self._next_round()
        own = await self._updates.publish(plugin, number, samples, self._members.joined)
        self._own = own
        self._members.publish(own.update)
        self._host.exchange.published(own.update.manifest.root)
        if role is Role.SEED:  # it merges nothing, so this is all of its round
            await self._finish(number)
        return Published(own.version, number)

    async def _finish(self, number: int) -> None:
        self._members.finished(number)
        self._announce()
        self._updates.forget(self._members.senders())
        await self._updates.clean(number - self.rounds.settings.staleness_max, self._announced)

    def _announce(self) -> None:
        """Have the newest version found under the node's name, if the last one is old enough."""
        now = trio.current_time()
        if self._own is not None and now >= self._announced_at + self._host.config.announce_s:
            self._announced_at, self._announced = now, self._own.update.cid
            self._host.announce(self._members.name, [self._own.update.cid])

    # -- merging ----------------------------------------------------------------------------------

    async def merge(
        self,
        plugin: Plugin,
        method: Method,
        *,
        options: Mapping[str, Option],
        weighting: Weighting,
        samples: int | None,
        settings: RoundSettings,
    ) -> RoundResult:
        """Wait for the neighbours' updates of this round, and merge them; see the module."""
        async with self._turn:
            started = trio.current_time()
            role = self._members.role
            if not role.receives:
                raise ConfigError(
                    f"this node's role in the namespace is {role.value}: it does not merge",
                    hint="change its role to peer or leech",
                )
            own = await self._own_model(plugin, samples)
            number = self._next_round() if own is None else own.update.round
            like = own.source if own is not None else await self._snapshot(plugin)
            gathered = _Gathered({}, set())
            try:
                close = await self._collect(number, settings, like.specs(), gathered)
                self._count_absent(close)
                rejected = self._rejected(close)
                weights = self._weights(close, own, samples, weighting)
                merged, reason = await self._compute(close, own, weights, gathered, method)
            finally:
                for model in gathered.models.values():
                    model.close()
            if merged is not None:
                rejected += self._quarantined(merged, close)
                await self._host.calls.run_to_end(plugin.load, merged.tensors)
                self.base = merged.tensors
            self._updates.shared = self._shared(merged, close, rejected)
            contributions = self._contributions(close, own, merged, weights)
            record = None
            if merged is not None:
                written = record_of(
                    self._members.name,
                    self._host.peer_id,
                    method.name,
                    options,
                    self.topology.text,
                    number=number,
                    contributions=contributions,
                    rejected=rejected,
                    missing=close.missing,
                    digest=merged.digest,
                )
                record = await write_down(self._host, self._updates.records_folder, written)
            await self._finish(number)
            return RoundResult(
                round=number,
                merged=contributions,
                rejected=tuple(rejected),
                missing=close.missing,
                record=record,
                seconds=trio.current_time() - started,
                bytes_received=gathered.bytes_received,
                timed_out=close.reason is CloseReason.DEADLINE,
                reason=reason,
            )

    def _shared(
        self, merged: Merged | None, close: Close, rejected: Sequence[Rejection]
    ) -> Mapping[str, RawTensor] | None:
        """Return what everybody's round ended with, as far as this node can tell."""
        if merged is None or self.topology != full() or close.missing or rejected:
            return None
        return merged.tensors

    async def _own_model(self, plugin: Plugin, samples: int | None) -> Model | None:
        """Return this node's own update of the round, published now if it was not."""
        if not self._members.role.sends:
            return None
        if self._own is None or self._own.update.round <= max(
            self._members.round, self.rounds.number
        ):
            await self._publish(plugin, 1 if samples is None else samples)
        return None if self._own is None else self._own.model

    async def _snapshot(self, plugin: Plugin) -> MemorySource:
        return MemorySource(await self._host.calls.run_to_end(plugin.tensors))

    async def _collect(
        self,
        number: int,
        settings: RoundSettings,
        like: Mapping[str, TensorSpec],
        gathered: _Gathered,
    ) -> Close:
        """Fetch what the machine wants until it closes the round."""
        present = set(self._members.senders())
        neighbours = self.neighbours(number)
        most, now = self._host.config.absent_rounds, trio.current_time()
        absent = [peer for peer in neighbours if self._absent[peer] >= most]
        self.rounds.begin(number, set(neighbours) - set(absent), now, settings)
        for peer in absent:
            self.rounds.peer_joined(peer, now)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    present = self._note_members(number, present)
                    for wanted in self.rounds.wanted():
                        key = wanted.peer, wanted.cid.digest
                        if key not in gathered.fetching:
                            gathered.fetching.add(key)
                            nursery.start_soon(self._fetch, wanted, like, gathered)
                    decision = self.rounds.decision(trio.current_time())
                    if isinstance(decision, Close):
                        nursery.cancel_scope.cancel()
                        return decision
                    await self._wait(decision)
        finally:
            if self.rounds.is_open:  # cancelled: it is over all the same
                self.rounds.decision(math.inf)

    async def _wait(self, decision: Wait) -> None:
        with trio.CancelScope(deadline=decision.until):
            await self._members.changed.park()

    def _note_members(self, number: int, before: set[PeerId]) -> set[PeerId]:
        """Tell the machine who of the neighbours has come or gone."""
        now = trio.current_time()
        present = set(self._members.senders())
        for peer in sorted(before - present):
            self.rounds.peer_gone(peer, now)
        if present - before:
            neighbours = set(self.neighbours(number))
            for peer in sorted((present - before) & neighbours):
                self.rounds.peer_joined(peer, now)
        return present

    async def _fetch(
        self, wanted: Wanted, like: Mapping[str, TensorSpec], gathered: _Gathered
    ) -> None:
        peer, cid = wanted.peer, wanted.cid
        update = self._members.update(peer, cid)
        try:
            if update is None:
                raise UnfitError("it is not known any more")
            async with self._places:
                others = self._members.holders(peer)
                model = await self._updates.fetch(peer, update, others, like)
        except UnfitError as error:
            self.rounds.refused(peer, cid, str(error))
            self._host.swarm.penalize(
                peer, VIOLATION_POINTS, f"namespace {self._members.name}: {error}"
            )
        except Sbp2pError as error:
            self.rounds.failed(peer, cid, str(error))
        else:
            gathered.models[cid] = model
            gathered.bytes_received += model.bytes_received
            self.rounds.fetched(peer, cid, trio.current_time())
        self._members.changed.unpark_all()

    def _count_absent(self, close: Close) -> None:
        for each in close.taken:
            del self._absent[each.peer]
        refused = {each.update.peer for each in close.refused}
        for peer in set(close.missing) - refused:
            # who is ahead has given its update of this round in an earlier one
            if self.rounds.state_of(peer) is not NeighbourState.AHEAD:
                self._absent[peer] += 1
        for peer in set(self._absent) - set(self._members.senders()):
            del self._absent[peer]

    # -- what came of it --------------------------------------------------------------------------

    def _rejected(self, close: Close) -> list[Rejection]:
        found = [
            Rejection(each.update.peer, each.update.cid, each.reason) for each in close.refused
        ]
        while self._members.rejections:
            each = self._members.rejections.popleft()
            if all((each.peer_id, each.cid) != (other.peer_id, other.cid) for other in found):
                found.append(each)
        return found

    def _weights(
        self, close: Close, own: Model | None, samples: int | None, weighting: Weighting
    ) -> dict[PeerId, Fraction]:
        mine = self._host.peer_id
        everybody = {mine, *self._members.senders(), *(each.peer for each in close.taken)}
        if own is not None and samples is None:
            samples = own.update.samples
        if self.topology == full():
            # as if who is missing were no member: whoever has the same inputs gets the same bits
            everybody -= set(close.missing)
        return weigh(
            weighting,
            close.taken,
            own=mine,
            samples=samples or 1,
            row=self.topology.weights(mine, everybody, close.round),
            includes_own=own is not None,
            samples_max=self._host.config.samples_max,
        )

    async def _compute(
        self,
        close: Close,
        own: Model | None,
        weights: Mapping[PeerId, Fraction],
        gathered: _Gathered,
        method: Method,
    ) -> tuple[Merged | None, str]:
        """Merge, in a thread; or return why nothing was merged."""
        if not close.has_quorum:
            return None, f"{len(close.taken)} updates are no quorum"
        if not close.taken:
            return None, "no neighbour's update came"
        from sbp2p.merge.method import get

        from .merging import Share, merge_shares

        models = {each.peer: gathered.models[each.update.cid] for each in close.taken}
        if own is not None:
            models[self._host.peer_id] = own
        shares = [
            Share(peer, models[peer].update.cid, weight, models[peer].source)
            for peer, weight in weights.items()
        ]
        run = self._host.calls.run_to_end
        try:
            base = None
            if method.needs_base:
                if self.base is None:
                    first = await run(merge_shares, shares, get(_first_base(method)), None)
                    self.base = first.tensors
                base = MemorySource(self.base)
            merged = await run(merge_shares, shares, method, base)
        except MergeError as error:
            return None, str(error)
        return merged, ""

    def _quarantined(self, merged: Merged, close: Close) -> list[Rejection]:
        cids = {each.peer: each.update.cid for each in close.taken}
        found = []
        for peer, reason in merged.rejected:
            if peer in cids:
                self._host.swarm.penalize(peer, DIVERGED_POINTS, f"its model: {reason}")
            found.append(Rejection(peer, cids.get(peer), reason))
        return found

    def _contributions(
        self,
        close: Close,
        own: Model | None,
        merged: Merged | None,
        weights: Mapping[PeerId, Fraction],
    ) -> tuple[Contribution, ...]:
        """Return what was merged, this node's own first."""
        used = {} if merged is None else merged.weights
        taken: dict[PeerId, Taken] = {each.peer: each for each in close.taken}
        found = []
        for peer in weights:
            if peer not in used:
                continue
            if peer in taken:
                update = taken[peer].update
                cid, number, samples = update.cid, update.round, update.samples
            elif own is not None:
                cid, number, samples = own.update.cid, own.update.round, own.update.samples
            else:
                continue
            found.append(
                Contribution(
                    peer_id=peer, cid=cid, round=number, weight=used[peer], samples=samples
                )
            )
        return tuple(found)
