from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbp2p_protocol.buffers import POOLED_MIN, POOLED_SIZE, BufferPool

SIZES = st.sampled_from([0, 1, POOLED_MIN - 1, POOLED_MIN, 300_000, POOLED_SIZE, POOLED_SIZE + 1])


def size_of(view: memoryview) -> int:
    assert isinstance(view.obj, bytearray)
    return len(view.obj)


def test_a_buffer_is_used_again_only_when_the_last_slice_of_it_is_gone() -> None:
    pool = BufferPool(buffers_max=1)
    view = pool.take(100_000)
    first = view.obj
    part = view[10:20][2:4]
    del view
    assert pool.take(100_000).obj is not first
    del part
    assert pool.take(200_000).obj is not first  # `first` itself still names it
    del first
    again = pool.take(200_000)
    assert len(again) == 200_000
    assert size_of(again) == POOLED_SIZE


def test_what_does_not_fit_the_pool_is_made_to_measure() -> None:
    pool = BufferPool(buffers_max=1)
    for size in (0, 1, POOLED_MIN - 1, POOLED_SIZE + 1):
        assert size_of(pool.take(size)) == size
    held = pool.take(POOLED_MIN)
    assert size_of(pool.take(POOLED_MIN)) == POOLED_MIN
    assert size_of(held) == POOLED_SIZE
    assert size_of(BufferPool(buffers_max=0).take(POOLED_MIN)) == POOLED_MIN


class PoolMachine(RuleBasedStateMachine):
    """Views are taken, cut and dropped in any order; what is held never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool(buffers_max=3)
        self.held: list[tuple[memoryview, int]] = []
        self.mark = 0

    @rule(size=SIZES)
    def take(self, size: int) -> None:
        self.mark = (self.mark + 1) % 256
        view = self.pool.take(size)
        assert len(view) == size
        view[:] = bytes([self.mark]) * size
        self.held.append((view, self.mark))

    @rule(index=st.integers(0, 20), start=st.integers(0, 1000))
    def cut(self, index: int, start: int) -> None:
        if index < len(self.held):
            view, mark = self.held[index]
            self.held[index] = (view[start : start + 1000], mark)

    @rule(index=st.integers(0, 20))
    def drop(self, index: int) -> None:
        if index < len(self.held):
            del self.held[index]

    @invariant()
    def nothing_held_has_changed(self) -> None:
        for view, mark in self.held:
            assert not view or view[0] == view[-1] == mark


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
