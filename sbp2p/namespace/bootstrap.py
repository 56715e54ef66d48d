"""Joining late: a newcomer takes the model that the others have got to.

Theory of operation. Members tell of their newest updates when they are met, so what there is is
known after a round trip; others are waited for a little while. The highest round that more than
half of the members with an update have reached is the one to begin with: one peer alone, which says
to be further, leads nobody on. Updates of that round are tried first, then later ones, then older
ones; each comes from its publisher and from whoever has merged it, and none of them is paused. One
that a merge would refuse for a NaN or an infinity is passed over, as if it did not fit.

Error cases: NotFoundError when nobody has a model in time, or none of those that there are fits.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import trio

from sbp2p.errors import MergeError, NotFoundError, Sbp2pError
from sbp2p.merge.tensors import MemorySource
from sbp2p.swarm import VIOLATION_POINTS

from .updates import UnfitError
from .values import Bootstrapped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p.checkpoint.reader import RawTensor
    from sbp2p.plugins.plugin import Plugin
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.namespace_messages import Update

    from .host import Host
    from .members import Members
    from .rounds import Training
    from .updates import Updates


async def bootstrap(
    host: Host,
    members: Members,
    updates: Updates,
    training: Training,
    plugin: Plugin,
    timeout_s: float,
) -> Bootstrapped:
    """Load the model that the others have got to; see the module."""
    reasons: dict[bytes, str] = {}
    with trio.move_on_after(timeout_s):
        like = MemorySource(await host.calls.run_to_end(plugin.tensors)).specs()
        while True:
            for peer_id, update in await _candidates(host, members, reasons):
                try:
                    model = await updates.fetch(peer_id, update, members.holders(peer_id), like)
                    tensors = await host.calls.run_to_end(model.tensors)
                    model.close()
                    await host.calls.run_to_end(_check, peer_id, update, tensors)
                    await host.calls.run_to_end(plugin.load, tensors)
                except (UnfitError, MergeError) as error:
                    reasons[update.cid.digest] = str(error)
                    reason = f"namespace {members.name}: {error}"
                    host.swarm.penalize(peer_id, VIOLATION_POINTS, reason)
                except Sbp2pError as error:
                    reasons[update.cid.digest] = str(error)
                else:
                    training.base = tensors
                    members.finished(max(members.round, update.round))
                    return Bootstrapped(peer_id, update.cid, update.round)
    why = "; ".join(dict.fromkeys(reasons.values())) or "no member has published one"
    raise NotFoundError(
        f"no model to begin with in {members.name!r} after {timeout_s:g} s: {why}",
        hint=f"{len(members)} members are here; somebody has to begin without a bootstrap",
    )


async def _candidates(
    host: Host, members: Members, tried: dict[bytes, str]
) -> list[tuple[PeerId, Update]]:
    """Return updates that were not tried, the best first; waits for one."""
    while not (found := _untried(members, tried)):
        await members.changed.park()
    if len(found) < len(members.senders()):
        # those that are being met just now have their say, too
        with trio.move_on_after(host.config.bootstrap_wait_s):
            while len(found) < len(members.senders()):
                await members.changed.park()
                found = _untried(members, tried)
    rounds = sorted((update.round for _, update in found), reverse=True)
    start = rounds[len(rounds) // 2]
    return sorted(found, key=lambda each: _rank(each[1].round, start))


def _check(peer_id: PeerId, update: Update, tensors: Mapping[str, RawTensor]) -> None:
    """Raise MergeError for a model that would make every update of this node one to refuse."""
    from .merging import Share, check_alone

    check_alone(Share(peer_id, update.cid, Fraction(1), MemorySource(tensors)))


def _rank(number: int, start: int) -> tuple[int, int]:
    if number >= start:
        return 0, number - start
    return 1, start - number


def _untried(members: Members, tried: dict[bytes, str]) -> list[tuple[PeerId, Update]]:
    found = []
    for peer_id in members.senders():
        update = members.newest(peer_id)
        if update is not None and update.cid.digest not in tried:
            found.append((peer_id, update))
    return found
