"""The text to learn: sentences of a small grammar, as many as anybody wants, always the same.

A story names somebody, gives them a place and a thing, and goes on to speak of "she" or "he" and of
that thing: to know the next character takes spelling, syntax and a memory of some fifty characters.
Nothing is downloaded. Each node has a stream of its own, drawn by its own seed.
"""

from __future__ import annotations

from random import Random
from typing import Final

import torch

_PEOPLE: Final = (
    ("Ada", "she"), ("Grace", "she"), ("Emmy", "she"), ("Sofya", "she"), ("Hedy", "she"),
    ("Alan", "he"), ("Niels", "he"), ("Kurt", "he"), ("Blaise", "he"), ("Leslie", "he"),
)  # fmt: skip
_PLACES: Final = ("harbour", "library", "garden", "workshop", "station", "kitchen", "market")
_THINGS: Final = ("lamp", "letter", "compass", "kettle", "ladder", "mirror", "violin", "basket")
_LOOKS: Final = ("old", "green", "broken", "heavy", "quiet", "borrowed")
_FINDS: Final = ("found", "saw", "bought", "repaired", "carried", "forgot")
_LATER: Final = ("the next morning", "after the rain", "when the bell rang", "on the way home")
_ALPHABET: Final = "\n .," + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "abcdefghijklmnopqrstuvwxyz"
_INDEX: Final = {character: number for number, character in enumerate(_ALPHABET)}

VOCABULARY: Final = len(_ALPHABET)


def story(rng: Random) -> str:
    """Return one story of two sentences."""
    (name, pronoun), place, thing = rng.choice(_PEOPLE), rng.choice(_PLACES), rng.choice(_THINGS)
    look, verb, later = rng.choice(_LOOKS), rng.choice(_FINDS), rng.choice(_LATER)
    second = rng.choice(
        (
            f"{later}, {pronoun} took the {thing} back to the {place}.",
            f"{later}, the {thing} was gone and {pronoun} left the {place}.",
            f"{pronoun} gave the {thing} away {later}.",
        )
    )
    return f"In the {place}, {name} {verb} the {look} {thing}. {second[0].upper()}{second[1:]}\n"


def encode(text: str) -> torch.Tensor:
    """Return the numbers of characters, int64; raises KeyError for one that is not known."""
    return torch.tensor([_INDEX[character] for character in text])


def stream(seed: int, characters: int) -> torch.Tensor:
    """Return a text of at least so many characters, as numbers, the same for the same seed."""
    rng = Random(seed)  # noqa: S311  (what the stories are)
    parts: list[str] = []
    size = 0
    while size < characters:
        parts.append(story(rng))
        size += len(parts[-1])
    return encode("".join(parts))


class Batches:
    """Windows of one text, drawn at random by a seed."""

    def __init__(self, text: torch.Tensor, *, context: int, batch: int, seed: int) -> None:
        self._text = text
        self._context, self._batch = context, batch
        self._rng = torch.Generator().manual_seed(seed)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and what follows each of them: both of shape (batch, context)."""
        last = len(self._text) - self._context - 1
        starts = torch.randint(last, (self._batch, 1), generator=self._rng)
        windows = self._text[starts + torch.arange(self._context + 1)]
        return windows[:, :-1], windows[:, 1:]
