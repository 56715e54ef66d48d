"""A decoder-only transformer over characters, in plain PyTorch.

Shapes: B sequences, T characters, D features, V characters in the alphabet. The output weights are
the embedding's (tied), which a merge has to keep so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from .text import VOCABULARY


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How large the model is."""

    features: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 64


class Block(nn.Module):
    """Attention and a wide layer, each normalised before and added to what was there."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.features
        self.heads = shape.heads
        self.norm_attention, self.norm_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x_btd: torch.Tensor) -> torch.Tensor:
        """Return what the next block gets."""
        batch, length, width = x_btd.shape
        mixed = self.queries_keys_values(self.norm_attention(x_btd))
        parts = mixed.view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_btd = x_btd + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        result: torch.Tensor = x_btd + self.wide(self.norm_wide(x_btd))
        return result


class CharacterModel(nn.Module):
    """Says which character comes next."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, shape.features)
        self.places = nn.Embedding(shape.context, shape.features)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.features)
        self.head = nn.Linear(shape.features, VOCABULARY, bias=False)
        self.head.weight = self.characters.weight

    def forward(self, inputs_bt: torch.Tensor) -> torch.Tensor:
        """Return the scores of every character at every place: (B, T, V)."""
        places = torch.arange(inputs_bt.shape[1])
        x_btd = self.characters(inputs_bt) + self.places(places)
        scores: torch.Tensor = self.head(self.norm(self.blocks(x_btd)))
        return scores

    def loss(self, inputs_bt: torch.Tensor, targets_bt: torch.Tensor) -> torch.Tensor:
        """Return the mean negative log likelihood of the targets, in nats a character."""
        scores = self(inputs_bt)
        return functional.cross_entropy(scores.flatten(0, 1), targets_bt.flatten())


def make(shape: Shape, seed: int) -> CharacterModel:
    """Return a fresh model, the same for the same seed."""
    torch.manual_seed(seed)
    model = CharacterModel(shape)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.05)
    return model
