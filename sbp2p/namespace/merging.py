"""One merge: models, weights and a method, in a worker thread.

Theory of operation: the engine (`sbp2p.merge.engine`) computes; this puts its inputs together and
reads its report. Inputs are in order of their manifests, so that every peer with the same ones gets
the same bits. Imported when a round is merged: it brings torch along.

Error cases: MergeError when there is nothing to merge, or too little for the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p.merge.engine import merge
from sbp2p.merge.method import get
from sbp2p.merge.policies import Policies, Policy
from sbp2p.merge.tensors import Input, MemorySink
from sbp2p_protocol.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from sbp2p.checkpoint.reader import RawTensor
    from sbp2p.merge.method import Method
    from sbp2p.merge.tensors import Source
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

_THREADS_FROM_BYTES: Final = 16 * MIB
"""With less, starting threads costs more than they save."""

_POLICIES: Final = Policies(counters=Policy.MEDIAN, integers=Policy.MAJORITY)
"""No member decides alone: not by a counter of 2^62, and not by an integer that differs, which by
the engine's default would end everybody's round with an error."""


@dataclass(frozen=True, slots=True)
class Share:
    """One model of a merge."""

    peer_id: PeerId
    cid: Cid
    weight: Fraction
    source: Source


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of a merge."""

    tensors: Mapping[str, RawTensor]
    weights: Mapping[PeerId, Fraction]
    """Of those that were used, with the sum 1."""
    rejected: tuple[tuple[PeerId, str], ...]
    digest: bytes


def merge_shares(shares: Sequence[Share], method: Method, base: Source | None) -> Merged:
    """Merge; raises MergeError."""
    size = sum(spec.nbytes for each in shares for spec in each.source.specs().values())
    labels = {str(each.peer_id): each.peer_id for each in shares}
    sink = MemorySink()
    report = merge(
        [Input(each.source, str(each.peer_id), each.cid.digest, each.weight) for each in shares],
        method,
        sink=sink,
        base=base,
        policies=_POLICIES,
        threads=1 if size < _THREADS_FROM_BYTES else None,
    )
    return Merged(
        sink.tensors,
        {labels[label]: weight for label, weight in report.used},
        tuple((labels[each.label], each.reason) for each in report.rejected),
        report.digest,
    )


def check_alone(share: Share) -> None:
    """Raise MergeError for a model that no merge would take, as it has a NaN or an infinity."""
    merge_shares([share], get("mean"), None)
