"""What one node of the example is told when it is started."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .training import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What one node is told when it is started.

    Attributes:
        recipe: how to train.
        home: folder for its key and its store.
        identity: names its key, and so its place in the topology; the same for the same text.
        shard: which one it sees, of `shards`.
        peers: an address to find the others by; none for the first node.
        wait_for: how many others to wait for before the first round; none for a newcomer, which
            takes the model and the round from those that are there.
        newcomer: whether it comes when the others have begun.
        waits: whether it comes only when it is told to go on, with everything loaded.
        pace_s: how long the training of a round takes at least, as if on an accelerator, which
            leaves the processor to others.
        idle: whether it goes along without any training.
        leech: whether it merges and publishes nothing.
        topology: who exchanges models with whom.
        method: how models are merged, with its options.
        attack: what it publishes in place of its model, if it is hostile.
        deadline_s: of a merge.
        staleness_max: how many rounds old an update may be.
        codec: how updates travel.
        limit_s: it ends after so long, whatever happens.
    """

    recipe: Recipe
    home: str
    identity: str
    shard: int
    shards: int
    peers: tuple[str, ...] = ()
    wait_for: int = 0
    newcomer: bool = False
    waits: bool = False
    pace_s: float = 0.0
    idle: bool = False
    leech: bool = False
    topology: str = "full"
    method: str = "mean"
    options: dict[str, Any] = field(default_factory=dict)
    attack: str | None = None
    deadline_s: float = 10.0
    staleness_max: int = 1
    codec: str = "lossless"
    limit_s: float = 600.0

    def to_json(self) -> dict[str, Any]:
        """Return it as a child is given it."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Settings:
        """Read what `to_json` made."""
        rest = {**given, "recipe": Recipe(**given["recipe"]), "peers": tuple(given["peers"])}
        return cls(**rest)
