"""Merges that hold when some of the inputs are hostile, broken or stale.

Each method says in its `doc` how many of n inputs may be arbitrary. All of them count models and
ignore weights unless told otherwise: a weight is what a peer says of itself, so a method that lets
it count lets a liar count for many. Docs: `docs/merge-methods.md`, `docs/attacks.md`.

* `hostile`: how many of the inputs may be hostile, and the error when that is too many;
* `means`, `order`: means and medians of a few values for each weight, to one rounding;
* `geometry`: squared distances and inner products of whole models, streamed;
* `coordinatewise`: median, trimmed mean, means around the median and around the trimmed mean;
* `krum`: Krum, Multi-Krum, and Bulyan, which builds upon it;
* `filters`: minimum diameter averaging, FABA, comparative elimination;
* `geometric_median`, `clipping`: weights by distance, from the inner products alone;
* `mixing`: nearest-neighbour mixing and bucketing, which any of the others may follow.
"""

from __future__ import annotations

from typing import Final

METHODS: Final = {
    "bucketing": "sbp2p.merge.robust.mixing",
    "bulyan": "sbp2p.merge.robust.bulyan",
    "centered-clipping": "sbp2p.merge.robust.clipping",
    "comparative-elimination": "sbp2p.merge.robust.filters",
    "faba": "sbp2p.merge.robust.filters",
    "geometric-median": "sbp2p.merge.robust.geometric_median",
    "krum": "sbp2p.merge.robust.krum",
    "mean-around-median": "sbp2p.merge.robust.coordinatewise",
    "median": "sbp2p.merge.robust.coordinatewise",
    "minimum-diameter": "sbp2p.merge.robust.filters",
    "multi-krum": "sbp2p.merge.robust.krum",
    "nearest-neighbour-mixing": "sbp2p.merge.robust.mixing",
    "norm-clipped-mean": "sbp2p.merge.robust.clipping",
    "phocas": "sbp2p.merge.robust.coordinatewise",
    "trimmed-mean": "sbp2p.merge.robust.coordinatewise",
}
