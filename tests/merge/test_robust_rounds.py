"""A hostile member of a namespace: no integer of his ends a round or decides what comes of it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.merge.method import get
from sbp2p.merge.tensors import MemorySource
from sbp2p.namespace.merging import Share, merge_shares
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.cid import hash_bytes, raw_cid

if TYPE_CHECKING:
    from numpy.typing import NDArray


def share(weight: float, counter: int, positions: list[int], samples: int = 1) -> Share:
    """Return what a member published: weights, a counter of batches, and integers."""
    arrays: dict[str, NDArray[np.generic]] = {
        "weight": np.full(3, weight, np.float32),
        "norm.num_batches_tracked": np.array(counter, np.int64),
        "positions": np.array(positions, np.int64),
    }
    dtypes = {"float32": "F32", "int64": "I64"}
    tensors = {
        name: RawTensor(name, dtypes[str(array.dtype)], array.shape, memoryview(array.tobytes()))
        for name, array in arrays.items()
    }
    content = b"".join(bytes(each.data) for each in tensors.values())
    return Share(
        PrivateKey.generate().peer_id,
        raw_cid(hash_bytes(content)),
        Fraction(samples),
        MemorySource(tensors),
    )


@pytest.mark.parametrize("name", ["median", "krum", "geometric-median", "trimmed-mean", "faba"])
def test_a_hostile_member_decides_nothing(name: str) -> None:
    honest = [share(1 + number / 64, 100 + number, [0, 1, 2]) for number in range(5)]
    hostile = share(-1e30, 2**62, [7, 7, 7], samples=10**12)
    merged = merge_shares([hostile, *honest], get(name), None).tensors
    weight = np.frombuffer(merged["weight"].data, np.float32)
    assert ((weight >= 1) & (weight <= 1.0625)).all()
    assert np.frombuffer(merged["norm.num_batches_tracked"].data, np.int64)[0] in range(100, 105)
    assert np.frombuffer(merged["positions"].data, np.int64).tolist() == [0, 1, 2]


def test_a_member_with_nan_is_named_and_the_round_goes_on() -> None:
    honest = [share(1 + number / 64, 100, [0]) for number in range(3)]
    broken = share(float("nan"), 100, [0])
    merged = merge_shares([*honest, broken], get("median"), None)
    assert [peer for peer, _ in merged.rejected] == [broken.peer_id]
    assert np.frombuffer(merged.tensors["weight"].data, np.float32)[0] == np.float32(1 + 1 / 64)
