"""The handwritten digits that scikit-learn ships, and who gets which of them.

1,797 grey pictures of 8 by 8 pixels (Alpaydin and Kaynak, UCI 1998). The file is read from where
scikit-learn lies, without importing it: that would cost each of eight processes a second and 90 MB.

A shard is what one node sees. Shards are equally large, do not overlap, and are not alike: each
node has a taste for some labels, drawn from a Dirichlet distribution, and takes pictures by it
until those run out (Hsu, Qi and Brown, arXiv:1909.06335). The smaller `alpha`, the fewer labels a
node knows. Everybody computes the same shards from the same seed, so nobody has to send any.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

LABELS: Final = 10
PIXELS: Final = 64
TEST_SIZE: Final = 450
"""A quarter: one point of accuracy is four and a half pictures."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures of shape (n, 64) with values from 0 to 1, and their labels of shape (n,)."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> Pictures:
        """Return some of them."""
        chosen = torch.from_numpy(indices)
        return Pictures(self.images[chosen], self.labels[chosen])


@cache
def _table() -> NDArray[np.float32]:
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("scikit-learn is not installed: pip install 'sbp2p[sklearn]'")
    folder = Path(next(iter(spec.submodule_search_locations)))
    with gzip.open(folder / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        return np.loadtxt(file, delimiter=",", dtype=np.float32)


def load(seed: int) -> tuple[Pictures, Pictures]:
    """Return what there is to learn from, and what nobody sees before the test."""
    table = _table()
    order = np.random.default_rng(seed).permutation(len(table))
    images = torch.from_numpy(table[order, :PIXELS] / 16)
    labels = torch.from_numpy(table[order, PIXELS].astype(np.int64))
    train = Pictures(images[TEST_SIZE:], labels[TEST_SIZE:])
    return train, Pictures(images[:TEST_SIZE], labels[:TEST_SIZE])


def shards(labels: torch.Tensor, count: int, alpha: float, seed: int) -> list[NDArray[np.int64]]:
    """Return which pictures each of `count` nodes has: equally many, and of few labels each."""
    rng = np.random.default_rng(seed)
    values = labels.numpy()
    left = [list(rng.permutation(np.flatnonzero(values == label))) for label in range(LABELS)]
    tastes = rng.dirichlet([alpha] * LABELS, size=count)
    taken: list[list[int]] = [[] for _ in range(count)]
    for _ in range(len(values) // count):
        for node, taste in enumerate(tastes):
            there = np.array([len(each) for each in left], dtype=np.float64)
            wish = taste * (there > 0)
            wish = wish if wish.sum() > 1e-9 else there
            taken[node].append(left[rng.choice(LABELS, p=wish / wish.sum())].pop())
    return [np.array(each, dtype=np.int64) for each in taken]
