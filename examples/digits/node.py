"""One node: a process that trains on its own shard and merges with its peers every round.

The whole of what makes a training loop decentralised is in `learn`: publish, merge. The rest is
what any program has: settings, telling, an end.

What it tells, as JSON lines: `ready` with its address; `begun` when it trains; `round` with
accuracy, bytes on the wire, seconds, who was rejected; `done`. It then serves its last update
until its standard input ends.
"""

from __future__ import annotations

import time
from resource import RUSAGE_SELF, getrusage
from typing import TYPE_CHECKING, Any

import trio

from examples.child import open_node, run_child, tell, wire_bytes
from sbp2p.merge.method import get
from sbp2p.roles import Role
from sbp2p_protocol.rounds import RoundSettings

from .attacks import Liar
from .data import load, shards
from .settings import Settings
from .training import Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sbp2p
    from sbp2p.namespace import Namespace, RoundResult


class Learner:
    """A node's training, its lies if it is hostile, and what it tells."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        recipe = settings.recipe
        train, self.test = load(recipe.seed)
        own = shards(train.labels, settings.shards, recipe.alpha, recipe.seed)[settings.shard]
        self.trainer = Trainer(recipe, train.take(own), stream=settings.shard)
        self.model = self.trainer.model
        first = self.model.state_dict()
        self._liar = (
            Liar(settings.attack, first, settings.shard) if settings.attack is not None else None
        )

    def train(self, round_number: int) -> tuple[Any, float]:
        """Train for a round; return what to publish, and the mean loss."""
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        loss = self.trainer.train(round_number, 0 if self.settings.idle else None)
        if self._liar is None:
            return self.model, loss
        return self._liar.lie(before, self.model.state_dict()), loss

    async def learn(self, node: sbp2p.Node, namespace: Namespace) -> None:
        """Train, publish and merge until the recipe's last round."""
        settings, recipe = self.settings, self.settings.recipe
        using = get(settings.method, **settings.options)
        samples = recipe.steps * recipe.batch
        while namespace.round < recipe.rounds:
            started, paced = time.perf_counter(), trio.current_time() + settings.pace_s
            update, loss = await trio.to_thread.run_sync(self.train, namespace.round)
            await trio.sleep_until(paced)
            trained = time.perf_counter()
            if not settings.leech:
                await namespace.publish(update, samples=samples)
            result = await namespace.merge(
                self.model, using=using, samples=samples, deadline_s=settings.deadline_s
            )
            ended = time.perf_counter()
            tell(
                "round",
                loss=loss,
                accuracy=self.trainer.accuracy(self.test),
                train_s=trained - started,
                round_s=ended - started,
                **_told(result),
                **wire_bytes(node),
            )


def _told(result: RoundResult) -> dict[str, Any]:
    return {
        "round": result.round,
        "merge_s": result.seconds,
        "timed_out": result.timed_out,
        "merged": len(result.merged),
        "missing": len(result.missing),
        "rejected": [[str(each.peer_id), each.reason] for each in result.rejected],
    }


async def live(given: Mapping[str, Any], go: trio.Event) -> None:
    """Be a node until the parent wants no more of it."""
    settings = Settings.from_json(given)
    learner = Learner(settings)
    rounds = RoundSettings(deadline_s=settings.deadline_s, staleness_max=settings.staleness_max)
    async with open_node(settings.home, settings.identity) as node:
        tell("ready", peer=str(node.peer_id), address=node.addresses[0].text)
        if settings.waits:
            await go.wait()
        arrived = time.perf_counter()
        async with node.namespace(
            "digits",
            role=Role.LEECH if settings.leech else Role.PEER,
            topology=settings.topology,
            peers=settings.peers,
            rounds=rounds,
            codec=settings.codec,
        ) as namespace:
            if settings.newcomer:
                await namespace.bootstrap(learner.model, timeout_s=settings.limit_s)
            else:
                await namespace.wait_for_peers(settings.wait_for, timeout_s=settings.limit_s)
            tell(
                "begun",
                round=namespace.round,
                seconds=time.perf_counter() - arrived,
                accuracy=learner.trainer.accuracy(learner.test),
                **wire_bytes(node),
            )
            await learner.learn(node, namespace)
            peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
            accuracy = learner.trainer.accuracy(learner.test)
            tell("done", accuracy=accuracy, rss_mb=peak, **wire_bytes(node))
            await trio.sleep_forever()


if __name__ == "__main__":
    run_child(live)
