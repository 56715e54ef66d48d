"""The world as a node sees it: what it reaches peers by, where it blocks, its dice and its date.

Real by default. A simulation replaces all of it (`sbp2p.testing`), and the node above is the same.
The clock is not among these: it is trio's, and a virtual one belongs to the whole run.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbp2p.calls import ThreadCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbp2p.calls import Calls
    from sbp2p.transport import Transport


def _unseeded() -> random.Random:
    return random.Random()  # noqa: S311  # spreads load, guards nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a node has of the world. Keys and nonces are not drawn from `rng`."""

    transports: Sequence[Transport] | None = None
    """How to reach addresses; TCP if None."""
    calls: Calls = field(default_factory=ThreadCalls)
    """Where the node's blocking calls run."""
    exchange_calls: Calls | None = None
    """Where those of its exchange run; worker threads of its own if None."""
    rng: random.Random = field(default_factory=_unseeded)
    """Every choice that is made at random to spread load."""
    wall_clock: Callable[[], float] = time.time  # noqa: TID251  (manifests and pins have dates)
    """Unix seconds, for what people read and for what expires."""
