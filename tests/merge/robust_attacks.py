"""What hostile peers publish: attacks from the literature, by attackers that see every model.

Each takes the honest models, of shape (n, d), the base that they were trained from, and the number
of hostile ones, and returns those. docs/attacks.md describes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Models = NDArray[np.float64]
    Model = NDArray[np.float64]
    Attack = Callable[[Models, Model, int], Models]


def alike(model: Model, f: int) -> Models:
    """Return f times the same model."""
    return np.repeat(model[None], f, axis=0)


def sign_flip(honest: Models, base: Model, f: int) -> Models:
    """Return the honest mean's step, backwards and ten times as far."""
    return alike(base - 10 * (honest.mean(0) - base), f)


def noise(honest: Models, base: Model, f: int) -> Models:
    """Return noise a million times as large as the honest step."""
    size: float = 1e6 * np.abs(honest - base).max()
    return base + size * np.random.default_rng(5).normal(size=(f, honest.shape[1]))


def overflow(honest: Models, base: Model, f: int) -> Models:
    """Return the largest numbers of float64, of both signs."""
    signs = np.where(np.arange(f * honest.shape[1]).reshape(f, -1) % 2, -1.0, 1.0)
    return signs * np.finfo(np.float64).max


def little_is_enough(honest: Models, base: Model, f: int) -> Models:
    """Return what stays 1.5 standard deviations off in each weight: Baruch et al. 2019 (ALIE)."""
    return alike(honest.mean(0) - 1.5 * honest.std(0), f)


def inner_product(honest: Models, base: Model, f: int) -> Models:
    """Return a step against the honest mean that turns the mean around: Xie et al. 2019 (IPM)."""
    scale = 1.5 * len(honest) / f
    return alike(base - scale * (honest.mean(0) - base), f)


def small_inner_product(honest: Models, base: Model, f: int) -> Models:
    """Return a step against the honest mean that is shorter than theirs."""
    return alike(base - 0.5 * (honest.mean(0) - base), f)


def collusion(honest: Models, base: Model, f: int) -> Models:
    """Return one model a hundred times as far from the honest mean as the farthest honest one."""
    centre = honest.mean(0)
    radius = np.linalg.norm(honest - centre, axis=1).max()
    step = np.ones(honest.shape[1]) / np.sqrt(honest.shape[1])
    return alike(centre + 100 * radius * step, f)


def near_collusion(honest: Models, base: Model, f: int) -> Models:
    """Return one model as far from the honest mean as the farthest honest one."""
    centre = honest.mean(0)
    radius = np.linalg.norm(honest - centre, axis=1).max()
    step = np.ones(honest.shape[1]) / np.sqrt(honest.shape[1])
    return alike(centre + radius * step, f)


def stale(honest: Models, base: Model, f: int) -> Models:
    """Return a model from long ago, fifty honest steps back."""
    return alike(base - 50 * (honest.mean(0) - base), f)


def zeros(honest: Models, base: Model, f: int) -> Models:
    """Return models of nothing but zeros."""
    return np.zeros((f, honest.shape[1]))


CARRIES_THE_MEAN_AWAY: Final[dict[str, Attack]] = {
    "sign flip": sign_flip,
    "noise": noise,
    "overflow": overflow,
    "inner-product manipulation": inner_product,
    "collusion": collusion,
    "stale replay": stale,
    "zeros": zeros,
}
HIDES: Final[dict[str, Attack]] = {
    "a little is enough": little_is_enough,
    "inner-product manipulation, small": small_inner_product,
    "collusion nearby": near_collusion,
}
ATTACKS: Final = {**CARRIES_THE_MEAN_AWAY, **HIDES}
