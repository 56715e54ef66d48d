"""Whether others can dial this node: what was asked, what was answered, and what it comes to.

Theory of operation. Connected peers are asked, one at a time, to dial this node back (`autonat`).
The newest answer of each group of observers counts, for `valid_s`. Somebody who dials this node
without being asked to is an answer too, and a better one, but only for the network that it came
from.

| state | when |
|---|---|
| UNKNOWN | nothing below holds |
| REACHABLE | `answers_min` groups, and over two thirds of those that answered, reached this node |
| REACHABLE | this node has no public address, and a peer of its own network dialled it |
| UNREACHABLE | `answers_min` groups, and over two thirds, failed to |
| UNREACHABLE | this node does not listen |

Between two thirds and two thirds the state stays as it is. A change of the addresses starts over.

While the answer is open a peer is asked every `ask_s`; when it is known, every `recheck_s`, so a
change shows after a few rechecks. A group is not asked again before `again_s`.

Pure: time and dice are arguments, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from .address_scope import Scope, observer_group, scope_of
from .limits import REACHABILITY_ANSWERS_MAX

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from sbp2p_keys.identity import PeerId

    from .multiaddr import Address


class Reachability(Enum):
    """Whether others can dial this node."""

    UNKNOWN = "unknown"
    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class _Answer:
    reached: bool
    at: float


class ReachabilityMachine:
    """The state of one node.

    Args:
        answers_min: groups of observers that decide. libp2p's specification: more than three.
        ask_s: between two questions while the state is unknown.
        recheck_s: between two questions while it is known.
        again_s: before one group is asked again.
        valid_s: how long an answer counts.
        rng: spreads the questions.
    """

    def __init__(
        self,
        *,
        answers_min: int,
        ask_s: float,
        recheck_s: float,
        again_s: float,
        valid_s: float,
        rng: random.Random,
    ) -> None:
        self.state = Reachability.UNKNOWN
        self.next_ask = -math.inf
        """When to call `choose` again."""
        self._answers_min = answers_min
        self._ask_s = ask_s
        self._recheck_s = recheck_s
        self._again_s = again_s
        self._valid_s = valid_s
        self._rng = rng
        self._addresses: frozenset[Address] = frozenset()
        self._answers: dict[str, _Answer] = {}
        self._asked: dict[str, float] = {}
        self._came_from_own_network = False

    @property
    def counts(self) -> tuple[int, int]:
        """How many groups reached this node, and how many failed to, at the last judgement."""
        reached = sum(each.reached for each in self._answers.values())
        return reached, len(self._answers) - reached

    def addresses_changed(self, addresses: Sequence[Address], now: float) -> None:
        """Say where this node can be found, by its own knowledge; empty: it does not listen."""
        if frozenset(addresses) != self._addresses:
            self._addresses = frozenset(addresses)
            self._answers.clear()
            self._asked.clear()
            self.next_ask = now
            self.state = Reachability.UNKNOWN
            self._judge(now)

    def arrived(self, peer_id: PeerId, remote: Address, now: float) -> None:
        """Note that a peer dialled this node by itself."""
        if scope_of(remote) is Scope.PUBLIC:
            self.answered(peer_id, remote, reached=True, now=now)
        else:
            self._came_from_own_network = True
            self._judge(now)

    def choose(self, peers: Sequence[tuple[PeerId, Address]], now: float) -> PeerId | None:
        """Return whom to ask now, if anybody; `next_ask` says when to call again.

        Args:
            peers: connected peers that serve AutoNAT, and where each is.
            now: seconds.
        """
        self._judge(now)
        if not self._addresses:
            self.next_ask = math.inf
        if now < self.next_ask:
            return None
        known = self.state is not Reachability.UNKNOWN
        wait = self._recheck_s if known else self._ask_s
        self.next_ask = now + wait * self._rng.uniform(0.75, 1.25)
        fresh = [
            (peer, group)
            for peer, address in peers
            if now - self._asked.get(group := observer_group(address, peer), -math.inf)
            >= self._again_s
        ]
        if not fresh:
            return None
        peer, group = self._rng.choice(fresh)
        self._asked.pop(group, None)
        self._asked[group] = now
        if len(self._asked) > REACHABILITY_ANSWERS_MAX:
            del self._asked[next(iter(self._asked))]
        return peer

    def answered(self, peer_id: PeerId, remote: Address, *, reached: bool, now: float) -> None:
        """Note that a peer at `remote` reached this node, or failed to."""
        group = observer_group(remote, peer_id)
        self._answers.pop(group, None)
        self._answers[group] = _Answer(reached, now)
        if len(self._answers) > REACHABILITY_ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        if reached is (self.state is Reachability.UNREACHABLE):
            self.next_ask = min(self.next_ask, now + self._ask_s)  # something has changed
        self._judge(now)

    def _judge(self, now: float) -> None:
        gone = [name for name, each in self._answers.items() if now - each.at >= self._valid_s]
        for name in gone:
            del self._answers[name]
        yes, no = self.counts
        has_public = any(scope_of(each) is Scope.PUBLIC for each in self._addresses)
        if not self._addresses:
            self.state = Reachability.UNREACHABLE
        elif yes >= self._answers_min and yes > 2 * no:
            self.state = Reachability.REACHABLE
        elif no >= self._answers_min and no > 2 * yes:
            self.state = Reachability.UNREACHABLE
        elif not has_public and self._came_from_own_network:
            self.state = Reachability.REACHABLE
        elif not self._answers:
            self.state = Reachability.UNKNOWN
