"""Exact order statistics of task vectors, streamed: the k-th smallest magnitude and its like.

Theory of operation: a magnitude |x - base| is a non-negative float64, and those sort as their bits
do. So a radix selection: count how many magnitudes have which leading bits, keep the bucket that
the wanted rank lies in, and so on with the next bits, until what is left fits in memory; that is
gathered and selected from. Usually two passes, whatever the size, with one input's counts and at
most GATHER_MAX magnitudes held. Counts are integers and magnitudes are not reordered, so the result
is exact and depends neither on chunks nor on threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from sbp2p.merge.dtypes import numbers
from sbp2p.merge.method import BASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sbp2p.merge.method import Group

GATHER_MAX: Final = 2**22
"""Magnitudes gathered at once: 32 MiB."""

DIRECT_MAX: Final = 2**16
"""Magnitudes that are gathered without counting first, which for two chunks is the slower way."""

RADIX_BITS: Final = 14
"""Bits counted in a pass: the exponent and an eighth of an octave, 128 KiB of counts."""

_KEY_BITS: Final = 63
"""Bits of a non-negative float64 without its sign."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Magnitudes whose leading bits are `prefix`: all but the lowest `open_bits`."""

    prefix: int
    open_bits: int
    size: int
    rank: int
    """Of the wanted magnitude within the bucket, from 0."""


def order_statistics(group: Group, which: int, ranks: Sequence[int]) -> list[float]:
    """Return the magnitudes of input `which`'s task vector that have these ranks.

    Ranks count from 0, the smallest magnitude, over all of the group's tensors together.
    """

    def stream() -> Iterator[torch.Tensor]:
        for (_, values), (_, base) in zip(group.pieces(which), group.pieces(BASE), strict=True):
            yield values.sub_(base).abs_().view(torch.int64)

    size = numbers_in(group)
    buckets = [_Bucket(prefix=0, open_bits=_KEY_BITS, size=size, rank=rank) for rank in ranks]
    limit = DIRECT_MAX
    while any(_is_open(bucket, limit) for bucket in buckets):
        buckets = _narrow(stream, buckets, limit)
        limit = GATHER_MAX
    return _select(stream, buckets)


def numbers_in(group: Group) -> int:
    """Return how many floating numbers an input has: two for each complex element."""
    return sum(numbers(spec) for spec in group.tensors)


def _is_open(bucket: _Bucket, limit: int) -> bool:
    return bucket.size > limit and bucket.open_bits > 0


def _narrow(
    stream: Callable[[], Iterator[torch.Tensor]], buckets: list[_Bucket], limit: int
) -> list[_Bucket]:
    """Take one pass to replace each bucket that is too large by a part of it."""
    wanted = {(b.prefix, b.open_bits): b for b in buckets if _is_open(b, limit)}
    counts = {key: torch.zeros(2**RADIX_BITS, dtype=torch.int64) for key in wanted}
    for keys in stream():
        for key, bucket in wanted.items():
            digits = _inside(keys, bucket) >> _shift(bucket)
            if bucket.prefix:
                digits.bitwise_and_(2 ** (bucket.open_bits - _shift(bucket)) - 1)
            counts[key] += torch.bincount(digits, minlength=2**RADIX_BITS)
    up_to = {key: count.cumsum(0) for key, count in counts.items()}
    return [
        _part(b, up_to[b.prefix, b.open_bits]) if (b.prefix, b.open_bits) in wanted else b
        for b in buckets
    ]


def _shift(bucket: _Bucket) -> int:
    return max(0, bucket.open_bits - RADIX_BITS)


def _part(bucket: _Bucket, up_to: torch.Tensor) -> _Bucket:
    """Return the part of a bucket that has its rank, by counts that were summed up."""
    digit = int(torch.searchsorted(up_to, bucket.rank, right=True))
    before = int(up_to[digit - 1]) if digit else 0
    width = bucket.open_bits - _shift(bucket)
    return replace(
        bucket,
        prefix=(bucket.prefix << width) | digit,
        open_bits=_shift(bucket),
        size=int(up_to[digit]) - before,
        rank=bucket.rank - before,
    )


def _inside(keys: torch.Tensor, bucket: _Bucket) -> torch.Tensor:
    if bucket.open_bits == _KEY_BITS:
        return keys
    return keys[(keys >> bucket.open_bits) == bucket.prefix]


def _select(stream: Callable[[], Iterator[torch.Tensor]], buckets: list[_Bucket]) -> list[float]:
    """Gather what is in the buckets, each bucket once, and select from it."""
    wanted = {(b.prefix, b.open_bits): b for b in buckets if b.open_bits > 0}
    gathered = {key: torch.empty(b.size, dtype=torch.int64) for key, b in wanted.items()}
    filled = dict.fromkeys(wanted, 0)
    if wanted:
        for keys in stream():
            for key, bucket in wanted.items():
                inside = _inside(keys, bucket)
                gathered[key][filled[key] : filled[key] + len(inside)] = inside
                filled[key] += len(inside)
    found = []
    for bucket in buckets:
        if bucket.open_bits == 0:  # every one in it is the same
            value = torch.tensor(bucket.prefix, dtype=torch.int64).view(torch.float64)
        else:
            values = gathered[bucket.prefix, bucket.open_bits].view(torch.float64)
            value = values.kthvalue(bucket.rank + 1).values
        found.append(float(value))
    return found
