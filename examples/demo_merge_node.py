"""One of the two nodes of `demo_merge`: trains, publishes once, merges once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import trio
from blake3 import blake3

from examples.child import open_node, run_child, tell, wire_bytes
from examples.digits.data import load
from examples.digits.training import Recipe, Trainer
from sbp2p.plugins import wrap

if TYPE_CHECKING:
    from collections.abc import Mapping

_RECIPE: Final = Recipe(rounds=1, steps=300, batch=32, rate=0.1, momentum=0.0)


def digest(model: torch.nn.Module) -> str:
    """Return a hash of all weights."""
    state = blake3()
    for name, tensor in wrap(model).tensors().items():
        state.update(name.encode())
        state.update(tensor.data)
    return state.hexdigest()


async def live(given: Mapping[str, Any], go: trio.Event) -> None:
    """Train on some labels; meet the other; publish; merge."""
    train, test = load(_RECIPE.seed)
    own = torch.isin(train.labels, torch.tensor(given["labels"])).nonzero().flatten().numpy()
    trainer = Trainer(_RECIPE, train.take(own), stream=given["labels"][0])
    await trio.to_thread.run_sync(trainer.train, 0)
    tell("trained", labels=given["labels"], accuracy=trainer.accuracy(test))
    async with open_node(given["home"], given["name"]) as node:
        tell("ready", address=node.addresses[0].text)
        async with node.namespace("demo", peers=given["peers"]) as namespace:
            await namespace.wait_for_peers(1, timeout_s=given["limit_s"])
            await namespace.publish(trainer.model, samples=len(own))
            await namespace.merge(trainer.model, using="mean")
            tell(
                "done",
                accuracy=trainer.accuracy(test),
                digest=digest(trainer.model),
                **wire_bytes(node),
            )
            await trio.sleep_forever()


if __name__ == "__main__":
    run_child(live)
