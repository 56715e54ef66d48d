"""What a training loop logs when it prints a result."""

from __future__ import annotations

from fractions import Fraction

from sbp2p.namespace.values import Contribution, Rejection, RoundResult
from sbp2p.training import StepResult
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.cid import DAG_CBOR, Cid

PEER = PrivateKey.from_seed(bytes(32)).peer_id
CID = Cid.for_block(DAG_CBOR, b"manifest")


def result(**changes: object) -> RoundResult:
    one = Contribution(peer_id=PEER, cid=CID, round=3, weight=Fraction(1), samples=1)
    values: dict[str, object] = {
        "round": 3,
        "merged": (one, one),
        "rejected": (),
        "missing": (),
        "record": None,
        "seconds": 0.25,
        "bytes_received": 590,
        "timed_out": False,
    }
    return RoundResult(**{**values, **changes})  # type: ignore[arg-type]


def test_a_round() -> None:
    assert str(result()) == "round 3: merged 2 models, 590 bytes received in 0.25 s"


def test_a_round_in_which_not_all_was_well() -> None:
    text = str(result(rejected=(Rejection(PEER, CID, "NaN"),), missing=(PEER,), timed_out=True))
    assert text == (
        "round 3: merged 2 models, rejected 1, 1 missing, "
        "590 bytes received in 0.25 s, at the deadline"
    )
    assert "merged nothing (no quorum)" in str(result(merged=(), reason="no quorum"))


def test_a_step() -> None:
    done = StepResult(finished=(result(),), is_waiting=True, seconds=0.1)
    assert str(done) == f"{result()}; a round goes on"
    none = StepResult(finished=(), is_waiting=False, seconds=0.1)
    assert str(none) == "no round finished"
