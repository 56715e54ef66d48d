"""One node of the transformer example: AdamW inside, a Nesterov step at each merge.

The base of the outer step is the model of the last merge, which every node has alike: so the outer
momentum, which each keeps for itself, is alike, too, and nobody has to send it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import trio

from examples.child import open_node, run_child, tell, wire_bytes
from sbp2p.merge.method import get
from sbp2p_protocol.rounds import RoundSettings

from .training import Examiner, Recipe, Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping


async def live(given: Mapping[str, Any], go: trio.Event) -> None:
    """Be one node until the parent wants no more of it."""
    recipe = Recipe.from_json(given["recipe"])
    trainer, examiner = Trainer(recipe, given["index"]), Examiner(recipe)
    outer = get("diloco", rate=recipe.outer_rate, momentum=recipe.outer_momentum)
    rounds = RoundSettings(deadline_s=given["deadline_s"])
    async with open_node(given["home"], given["name"]) as node:
        tell("ready", address=node.addresses[0].text)
        async with node.namespace(
            "stories", peers=given["peers"], rounds=rounds, codec=given["codec"]
        ) as namespace:
            await namespace.wait_for_peers(recipe.nodes - 1, timeout_s=given["limit_s"])
            tell("begun", **wire_bytes(node))
            while namespace.round < recipe.rounds:
                started = time.perf_counter()
                await trio.to_thread.run_sync(trainer.train, namespace.round)
                await namespace.publish(trainer.model)
                result = await namespace.merge(trainer.model, using=outer)
                tell(
                    "round",
                    round=result.round,
                    loss=examiner.loss(trainer.model),
                    merged=len(result.merged),
                    seconds=time.perf_counter() - started,
                    merge_s=result.seconds,
                    **wire_bytes(node),
                )
            tell("done")
            await trio.sleep_forever()


if __name__ == "__main__":
    run_child(live)
