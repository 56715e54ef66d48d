from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbp2p_protocol.bitmap import Bitmap, bitmap_size
from sbp2p_protocol.errors import RemoteProtocolError


class BitmapMachine(RuleBasedStateMachine):
    """A bitmap against a Python set."""

    @initialize(length=st.integers(1, 70))
    def start(self, length: int) -> None:
        self.bitmap, self.model = Bitmap(length), set[int]()

    @rule(at=st.integers(0, 69))
    def set_bit(self, at: int) -> None:
        at %= len(self.bitmap)
        assert self.bitmap.set(at) == (at not in self.model)
        self.model.add(at)

    @rule(at=st.integers(0, 69))
    def clear_bit(self, at: int) -> None:
        at %= len(self.bitmap)
        assert self.bitmap.clear(at) == (at in self.model)
        self.model.discard(at)

    @rule(start=st.integers(0, 69))
    def iterate(self, start: int) -> None:
        assert list(self.bitmap.iter(start)) == sorted(i for i in self.model if i >= start)

    @rule(others=st.sets(st.integers(0, 69)))
    def combine(self, others: set[int]) -> None:
        others = {i % len(self.bitmap) for i in others}
        other = Bitmap(len(self.bitmap), others)
        assert set(self.bitmap.and_not(other)) == self.model - others
        assert set(self.bitmap & other) == self.model & others
        assert set(self.bitmap | other) == self.model | others

    @invariant()
    def agrees(self) -> None:
        assert set(self.bitmap) == self.model
        assert self.bitmap.count() == len(self.model)
        assert self.bitmap.any() == bool(self.model)
        assert self.bitmap.all() == (len(self.model) == len(self.bitmap))
        assert Bitmap.from_bytes(self.bitmap.to_bytes(), len(self.bitmap)) == self.bitmap


TestBitmapMachine = BitmapMachine.TestCase


def test_bit_order_on_the_wire() -> None:
    assert Bitmap(12, [0, 3, 8, 11]).to_bytes().hex() == "0909"
    assert Bitmap.full(12).to_bytes().hex() == "ff0f"
    assert Bitmap(0).to_bytes() == b""


def test_a_copy_is_independent() -> None:
    bitmap = Bitmap(3, [1])
    copy = bitmap.copy()
    copy.set(2)
    assert list(bitmap) == [1]


@pytest.mark.parametrize(
    ("data", "length"), [("", 1), ("00", 0), ("0000", 8), ("10", 4), ("80", 7)]
)
def test_wrong_size_or_padding_is_refused(data: str, length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        Bitmap.from_bytes(bytes.fromhex(data), length)


@given(st.binary(max_size=20), st.integers(0, 160))
def test_garbage_raises_only_the_remote_error(data: bytes, length: int) -> None:
    try:
        bitmap = Bitmap.from_bytes(data, length)
    except RemoteProtocolError:
        return
    assert bitmap.to_bytes() == data
    assert len(data) == bitmap_size(length)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_is_a_bug(index: int) -> None:
    with pytest.raises(IndexError):
        Bitmap(3).get(index)


def test_bitmaps_of_two_tables_do_not_mix() -> None:
    with pytest.raises(ValueError, match="3 and 4"):
        Bitmap(3).and_not(Bitmap(4))
