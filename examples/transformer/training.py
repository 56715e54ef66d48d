"""Training of the transformer: a node's part, and the synchronous training it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from .model import CharacterModel, Shape, make
from .text import Batches, stream

_TEXT: Final = 200_000
_TEST_TEXT: Final = 20_000
_TEST_SEED: Final = 777_777
_TEST_BATCHES: Final = 8
_WARM_UP: Final = 0.1
"""Of the steps: the learning rate rises over these."""
_CLIPPED: Final = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How the model is trained.

    Attributes:
        nodes: how many train.
        rounds: how often they merge.
        steps: of AdamW between two merges: H in the paper.
        batch: sequences in a step of one node.
        rate: AdamW's learning rate at its highest; it ends at a tenth of it, along a cosine.
        outer_rate, outer_momentum: of the Nesterov step that a merge takes. The paper has 0.7 and
            0.9, for many more rounds: in twelve, so much momentum never settles.
        seed: of the first weights and of all texts.
    """

    nodes: int = 4
    rounds: int = 12
    steps: int = 50
    batch: int = 8
    rate: float = 3e-3
    outer_rate: float = 0.8
    outer_momentum: float = 0.7
    seed: int = 0
    shape: Shape = field(default_factory=Shape)

    @property
    def tokens(self) -> int:
        """How many characters all nodes see together."""
        return self.nodes * self.rounds * self.steps * self.batch * self.shape.context

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, from 0, of all `rounds * steps`."""
        total = self.rounds * self.steps
        rising = min((step + 1) / (_WARM_UP * total), 1.0)
        falling = 0.55 + 0.45 * math.cos(math.pi * min(step / total, 1.0))
        return self.rate * rising * falling

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Recipe:
        """Read what `dataclasses.asdict` made."""
        return cls(**{**given, "shape": Shape(**given["shape"])})


def batches_of(recipe: Recipe, node: int) -> Batches:
    """Return the batches of one node: its text is nobody else's."""
    text = stream(recipe.seed * 1000 + node, _TEXT)
    context = recipe.shape.context
    return Batches(text, context=context, batch=recipe.batch, seed=recipe.seed * 1000 + node)


def optimizer_for(model: CharacterModel, recipe: Recipe) -> torch.optim.AdamW:
    """Return the inner optimizer."""
    return torch.optim.AdamW(
        model.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01
    )


class Trainer:
    """One node's model, optimizer and text. The optimizer's state stays here, as in the paper."""

    def __init__(self, recipe: Recipe, node: int) -> None:
        self.model = make(recipe.shape, recipe.seed)
        self._recipe = recipe
        self._batches = batches_of(recipe, node)
        self._optimizer = optimizer_for(self.model, recipe)

    def train(self, round_number: int) -> float:
        """Do the inner steps of a round, from 0; return their mean loss."""
        total = 0.0
        for step in range(self._recipe.steps):
            set_rate(
                self._optimizer, self._recipe.rate_at(round_number * self._recipe.steps + step)
            )
            loss = self.model.loss(*self._batches.next())
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), _CLIPPED)
            self._optimizer.step()
            total += float(loss.detach())
        return total / self._recipe.steps


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Change the learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class Examiner:
    """Measures the loss on a text that no node sees."""

    def __init__(self, recipe: Recipe) -> None:
        text = stream(_TEST_SEED, _TEST_TEXT)
        batches = Batches(text, context=recipe.shape.context, batch=32, seed=1)
        self._batches = [batches.next() for _ in range(_TEST_BATCHES)]

    @torch.no_grad()
    def loss(self, model: CharacterModel) -> float:
        """Return the mean loss, in nats a character."""
        return sum(float(model.loss(*each)) for each in self._batches) / len(self._batches)


def synchronous(recipe: Recipe) -> list[float]:
    """Train with the gradients of all nodes averaged after every step; return the losses.

    What data-parallel training computes, done in this one process: the average over the nodes'
    batches is the gradient of the joint batch. One loss for each `steps` steps, at equal tokens.
    """
    model = make(recipe.shape, recipe.seed)
    optimizer = optimizer_for(model, recipe)
    sources = [batches_of(recipe, node) for node in range(recipe.nodes)]
    examiner = Examiner(recipe)
    losses = []
    for step in range(recipe.rounds * recipe.steps):
        set_rate(optimizer, recipe.rate_at(step))
        drawn = [source.next() for source in sources]
        loss = model.loss(torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIPPED)
        optimizer.step()
        if (step + 1) % recipe.steps == 0:
            losses.append(examiner.loss(model))
    return losses
