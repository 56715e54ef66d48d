"""The record of a round, written down and signed; and the merge of a record done again.

A record is a version of the model `<namespace>/rounds` with one file, `round.cbor`
(`sbp2p_protocol.round_record`), whose manifest's parents are those of the models that were merged.
Who has these models and the record can do the merge again: `replay`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p.errors import NotFoundError
from sbp2p_protocol.limits import PARENTS_MAX
from sbp2p_protocol.namespace_messages import ROUNDS_SUFFIX
from sbp2p_protocol.round_record import Contribution as RecordedContribution
from sbp2p_protocol.round_record import Rejection as RecordedRejection
from sbp2p_protocol.round_record import RoundRecord
from sbp2p_protocol.rounds import shortened

from .files import write_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sbp2p.checkpoint.reader import RawTensor
    from sbp2p.merge.method import Method
    from sbp2p.node.values import Version
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

    from .host import Host
    from .values import Contribution, Rejection

_PARENTS: Final = PARENTS_MAX - 1
"""Inputs that the manifest names; the previous record is a parent, too. round.cbor has them all."""


def record_of(
    namespace: str,
    author: PeerId,
    method: str,
    options: Mapping[str, object],
    topology: str,
    *,
    number: int,
    contributions: Iterable[Contribution],
    rejected: Iterable[Rejection],
    missing: Iterable[PeerId],
    digest: bytes,
) -> RoundRecord:
    """Return the record of a round."""
    merged = tuple(
        RecordedContribution(each.peer_id, each.cid, each.round, each.weight, each.samples)
        for each in contributions
    )
    refused = {
        RecordedRejection(each.peer_id, each.cid, shortened(each.reason) or "refused")
        for each in rejected
        if each.cid is not None
    }
    there = {each.peer_id for each in merged} | {each.peer_id for each in refused}
    return RoundRecord(
        namespace=namespace,
        author=author,
        round=number,
        method=method,
        options={
            name: value if isinstance(value, (str, int, float, bytes)) else str(value)
            for name, value in options.items()
        },
        topology=topology,
        contributions=merged,
        rejected=tuple(refused),
        missing=tuple(each for each in missing if each not in there),
        digest=digest,
    )


async def write_down(host: Host, folder: Path, record: RoundRecord) -> Version:
    """Sign a record as a version; see the module."""
    path = await host.calls.run_to_end(write_record, folder / str(record.round), record.to_bytes())
    _, version = await host.publish(
        path,
        name=record.namespace + ROUNDS_SUFFIX,
        meta={"round": record.round, "peer": record.author.to_bytes()},
        parents=record.parents[:_PARENTS],
    )
    return version


@dataclass(frozen=True, slots=True)
class Replay:
    """A merge that was done again."""

    digest: bytes
    is_same: bool
    """Whether it is what the record says."""
    tensors: Mapping[str, RawTensor]


def replay(
    record: RoundRecord,
    sources: Mapping[Cid, Mapping[str, RawTensor]],
    *,
    base: Mapping[str, RawTensor] | None = None,
    method: Method | None = None,
) -> Replay:
    """Do the merge of a record again, and compare. Blocking; brings torch along.

    Args:
        record: of a round, as it was signed.
        sources: the models that it names, decoded, by their manifests.
        base: what the round before ended with, for a method that needs it.
        method: instead of a new one of the record's name and options: an outer optimiser with the
            state that it had when the round began. A new one is right for its first round only.

    Raises:
        NotFoundError: a model that the record names is not among the sources.
        MergeError: the method is not here, or refuses these models.
    """
    from sbp2p.merge.method import get
    from sbp2p.merge.tensors import MemorySource

    from .merging import Share, merge_shares

    missing = [str(each.cid) for each in record.contributions if each.cid not in sources]
    if missing:
        raise NotFoundError(
            f"{len(missing)} models of round {record.round} are not here, such as {missing[0]}",
            hint="fetch them by their CIDs, while anybody has them",
        )
    shares = [
        Share(each.peer_id, each.cid, each.weight, MemorySource(sources[each.cid]))
        for each in record.contributions
    ]
    if method is None:
        method = get(record.method, **record.options)
    merged = merge_shares(shares, method, None if base is None else MemorySource(base))
    return Replay(merged.digest, merged.digest == record.digest, merged.tensors)
