"""Targets of the merge layer: the text of topologies, records of rounds, compressed updates."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Final

from sbp2p.errors import CheckpointError
from sbp2p_protocol.cid import DAG_CBOR, Cid
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.round_record import Contribution, Rejection, RoundRecord
from sbp2p_protocol.topology import TopologyError, parse_topology

from .corpus import DIGESTS, KEYS
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal, text_of
from .structure import cbor

if TYPE_CHECKING:
    from sbp2p.checkpoint.reader import RawTensor
    from sbp2p_keys.identity import PeerId

_PEERS: Final[tuple[PeerId, ...]] = tuple(key.peer_id for key in KEYS)


def _topology(data: bytes) -> None:
    found = attempt(TopologyError, parse_topology, text_of(data))
    if isinstance(found, Refused):
        return
    expect_equal(parse_topology(found.text), found, "parsed again")
    found.neighbours(_PEERS[0], _PEERS, 3)
    attempt(TopologyError, found.check, _PEERS)


def _topology_seeds() -> list[bytes]:
    texts = (
        *("full", "ring", "line", "star", f"star:{_PEERS[0]}", "grid", "grid:4", "torus:3"),
        *("random-regular:4", "random-regular:3:7", "small-world:4:0.25", "small-world:6:1:2"),
        *("exponential", "one-peer", "matching", "matching:5", "ring,random-regular:4,full"),
    )
    return [text.encode() for text in texts]


def _record(data: bytes) -> None:
    record = attempt(RemoteProtocolError, RoundRecord.from_bytes, data)
    if isinstance(record, Refused):
        return
    expect_equal(record.to_bytes(), data, "encoded again")
    total = sum(record.weights.values())
    expect(total == 1 or not record.contributions, "weights do not add up")


def _record_seeds() -> list[bytes]:
    cids = [Cid(1, DAG_CBOR, 0x1E, digest) for digest in DIGESTS]
    weights = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))
    full = RoundRecord(
        namespace="org/digits",
        author=_PEERS[0],
        round=7,
        method="trimmed-mean",
        options={"trim": 0.25, "seed": 3, "exact": True, "note": "a", "key": b"b"},
        topology="random-regular:4",
        contributions=tuple(
            Contribution(peer, cid, 7 - late, weight, 100 + late)
            for late, (peer, cid, weight) in enumerate(zip(_PEERS, cids, weights, strict=False))
        ),
        rejected=(Rejection(_PEERS[1], cids[4], "tensor 'w' holds NaN"),),
        digest=DIGESTS[0],
    )
    alone = RoundRecord(
        namespace="digits",
        author=_PEERS[0],
        round=0,
        method="mean",
        topology="ring",
        contributions=(),
        missing=_PEERS[1:],
        digest=DIGESTS[1],
    )
    return [full.to_bytes(), alone.to_bytes()]


def _update(data: bytes) -> None:
    # here, since it brings torch along, which no other target needs
    from sbp2p.merge.compress.codec import decode_update
    from tests.merge.compress_samples import from_bytes

    tensors = attempt(RemoteProtocolError, from_bytes, data)
    if tensors is None or isinstance(tensors, Refused):
        return
    for parent in (None, _models()[0]):
        found = attempt(CheckpointError, decode_update, tensors, parent, bytes_max=_MODEL_BYTES)
        if not isinstance(found, Refused):
            size = sum(tensor.data.nbytes for tensor in found.values())
            expect(size <= _MODEL_BYTES, f"a model of {size} bytes")


_MODEL_BYTES: Final = 8192
"""What the models below fit in."""


@cache
def _models() -> tuple[dict[str, RawTensor], dict[str, RawTensor]]:
    """Return a model before and after a step."""
    import torch

    from tests.merge.compress_samples import of, step, weights

    before = weights(1024)
    counter = torch.tensor(5)
    return of(w=before, n=counter), of(w=before + step(1024, 1e-3), n=counter + 1)


def _update_seeds() -> list[bytes]:
    from sbp2p.merge.compress.codec import get_codec
    from tests.merge.compress_samples import to_bytes

    before, after = _models()
    encoded = [get_codec("bf16").encode(after), get_codec("int8").encode(after)]
    encoded += [get_codec(name).encode(after, before) for name in ("delta", "int8", "topk:0.01")]
    return [to_bytes(each.tensors) for each in encoded]


TARGETS: Final = (
    Target(
        name="compressed_update",
        modules=("sbp2p.merge.compress.description",),
        check=_update,
        seeds=_update_seeds,
        mutations=(cbor,),
        max_size=16_384,
        test_runs=60,
    ),
    Target(
        name="round_record",
        modules=("sbp2p_protocol.round_record",),
        check=_record,
        seeds=_record_seeds,
        mutations=(cbor,),
        max_size=4096,
        test_runs=200,
    ),
    Target(
        name="topology_text",
        modules=("sbp2p_protocol.topology",),
        check=_topology,
        seeds=_topology_seeds,
        tokens=(b":", b",", b"0.5", b"4294967295", b"-1", b"+1", b"1e3", b"star:"),
        max_size=600,
        test_runs=200,
    ),
)
