"""Plain training: nothing in here knows of a network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional

from .model import make

if TYPE_CHECKING:
    from .data import Pictures


RATES: Final = {"mlp": 0.15, "cnn": 0.03}
"""Learning rates that suit the models: at the MLP's, the convolutions never learn anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a model is trained, by one node or by eight.

    Attributes:
        model: which one.
        rounds: how often the nodes merge.
        steps: of a node between two merges.
        batch: pictures in a step.
        rate: learning rate of the first round, that of RATES if None; it falls to zero along a
            cosine.
        momentum: of the steps of one round; each round begins with none.
        alpha: how alike the shards are.
        seed: of the split, the shards, the first weights and the batches.
    """

    model: str = "mlp"
    rounds: int = 20
    steps: int = 120
    batch: int = 16
    rate: float | None = None
    momentum: float = 0.9
    alpha: float = 1.0
    seed: int = 0

    def rate_in(self, round_number: int) -> float:
        """Return the learning rate of a round, from 0."""
        rate = RATES[self.model] if self.rate is None else self.rate
        return rate * 0.5 * (1 + math.cos(math.pi * min(round_number / self.rounds, 1.0)))


class Trainer:
    """A model, its pictures, and where in the sequence of batches it is.

    The optimizer is made anew in each round: momentum that was gathered on the way to one model
    says nothing about the one that a merge put in its place.
    """

    def __init__(self, recipe: Recipe, pictures: Pictures, *, stream: int) -> None:
        self.model = make(recipe.model, recipe.seed)
        self.pictures = pictures
        self._recipe = recipe
        self._batches = torch.Generator().manual_seed(recipe.seed * 1000 + stream)

    def train(self, round_number: int, steps: int | None = None) -> float:
        """Train for a round; return the mean loss."""
        recipe = self._recipe
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=recipe.rate_in(round_number), momentum=recipe.momentum
        )
        steps = recipe.steps if steps is None else steps
        total = 0.0
        for _ in range(steps):
            chosen = torch.randint(len(self.pictures), (recipe.batch,), generator=self._batches)
            scores = self.model(self.pictures.images[chosen])
            loss = functional.cross_entropy(scores, self.pictures.labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach())
        return total / max(steps, 1)

    def accuracy(self, test: Pictures) -> float:
        """Return how many of the test's pictures are read right, in percent."""
        return accuracy(self.model, test)


@torch.no_grad()
def accuracy(model: torch.nn.Module, test: Pictures) -> float:
    """Return how many pictures a model reads right, in percent."""
    right = (model(test.images).argmax(1) == test.labels).float()
    return 100.0 * float(right.mean())


def centralised(recipe: Recipe, train: Pictures, test: Pictures, nodes: int) -> list[float]:
    """Train one model on everything, with as many samples as all nodes see; return its accuracy.

    The same batch, so `nodes` times as many steps in each of the rounds.
    """
    trainer = Trainer(recipe, train, stream=_CENTRAL)
    found = []
    for number in range(recipe.rounds):
        trainer.train(number, recipe.steps * nodes)
        found.append(trainer.accuracy(test))
    return found


_CENTRAL: Final = 999
