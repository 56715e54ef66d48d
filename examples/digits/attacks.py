"""What a hostile node publishes instead of its model. It trains like the others and knows them.

* `sign-flip`: goes as far as the training went, ten times, the other way.
* `noise`: Gaussian noise, much larger than weights are, in place of the weights.
* `nan`: one tensor of NaN: in a plain sum, everybody's.
* `stale`: the untrained model of the beginning, as if it were new, again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    State = Mapping[str, torch.Tensor]

ATTACKS: Final = ("sign-flip", "noise", "nan", "stale")
_FLIPPED: Final = 10.0
_DEVIATION: Final = 1.0


class Liar:
    """Makes the lie of each round from the truth.

    Args:
        attack: one of ATTACKS.
        first: the state before any training.
        seed: of the noise.

    Raises:
        ValueError: there is no such attack.
    """

    def __init__(self, attack: str, first: State, seed: int) -> None:
        if attack not in ATTACKS:
            raise ValueError(f"no attack is called {attack!r}: {', '.join(ATTACKS)}")
        self._attack = attack
        self._first = {name: tensor.clone() for name, tensor in first.items()}
        self._noise = torch.Generator().manual_seed(seed)

    def lie(self, before: State, after: State) -> dict[str, torch.Tensor]:
        """Return what to publish, given the state before and after the round's training."""
        match self._attack:
            case "sign-flip":
                return {
                    name: before[name] - _FLIPPED * (tensor - before[name])
                    for name, tensor in after.items()
                }
            case "noise":
                return {
                    name: torch.randn(tensor.shape, generator=self._noise) * _DEVIATION
                    for name, tensor in after.items()
                }
            case "nan":
                lie = {name: tensor.clone() for name, tensor in after.items()}
                next(iter(lie.values())).fill_(float("nan"))
                return lie
            case _:
                return dict(self._first)
