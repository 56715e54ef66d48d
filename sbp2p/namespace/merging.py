"""One merge: models, weights and a method, in a worker thread.

Theory of operation: the engine (`sbp2p.merge.engine`) computes; this puts its inputs together and
reads its report. Inputs are in order of their manifests, so that every peer with the same ones gets
the same bits. Imported when a round is merged: it brings torch along.

Error cases: MergeError when there is nothing to merge, or too little for the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import MergeError
from sbp2p.merge.compress.content import content_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from sbp2p.merge.method import Method
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid


@dataclass(frozen=True, slots=True)
class Share:
    """One model of a merge."""

    peer_id: PeerId
    cid: Cid
    weight: Fraction
    tensors: Mapping[str, RawTensor]


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of a merge."""

    tensors: Mapping[str, RawTensor]
    weights: Mapping[PeerId, Fraction]
    """Of those that were used, with the sum 1."""
    rejected: tuple[tuple[PeerId, str], ...]
    digest: bytes


def merge_shares(
    shares: Sequence[Share], method: Method, base: Mapping[str, RawTensor] | None
) -> Merged:
    """Merge; raises MergeError."""
    import torch

    if method.name != "mean":
        raise MergeError(f"{method.name} is not here")
    order = sorted(shares, key=lambda each: each.cid.digest)
    result: dict[str, RawTensor] = {}
    for name, first in order[0].tensors.items():
        total = torch.zeros(first.data.nbytes // 4, dtype=torch.float64)
        for each in order:
            values = torch.frombuffer(bytearray(each.tensors[name].data), dtype=torch.float32)
            total += float(each.weight) * values.double()
        data = total.float().numpy().tobytes()
        result[name] = RawTensor(name, first.dtype, first.shape, memoryview(data))
    weights = {each.peer_id: each.weight for each in shares}
    return Merged(result, weights, (), content_digest(result))
