"""Reads are small, errors end every thread, and nothing is finished that failed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from sbp2p.errors import CheckpointError, StoreError
from sbp2p.merge.engine import merge
from sbp2p.merge.tensors import Input, MemorySink, MemorySource
from sbp2p.merge.worker import ROW_BYTES_MAX
from tests.merge.merge_inputs import inputs, key, noise, source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sbp2p.merge.tensors import TensorSpec

MODEL = {"big": noise((700_000,), 1), "small": noise((3,), 2), "flags": torch.ones(9).bool()}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class Watched:
    """A source that keeps account of what is read of it, and can fail."""

    def __init__(self, inner: MemorySource, fails_at: int = -1) -> None:
        self.inner = inner
        self.fails_at = fails_at
        self.reads: list[tuple[str, int, int]] = []

    def specs(self) -> Mapping[str, TensorSpec]:
        return self.inner.specs()

    def read_into(self, name: str, offset: int, buffer: memoryview) -> None:
        self.reads.append((name, offset, buffer.nbytes))
        if len(self.reads) == self.fails_at:
            raise CheckpointError("the disk is on fire")
        self.inner.read_into(name, offset, buffer)


@pytest.mark.parametrize("method", ["mean", "median"])
def test_each_byte_is_read_once_a_little_at_a_time(method: str) -> None:
    watched = [Watched(source(MODEL)) for _ in range(3)]
    given = [Input(each, f"{number}", key(f"{number}")) for number, each in enumerate(watched)]
    merge(given, method, sink=MemorySink(), threads=3)
    for each in watched:
        assert max(size for _, _, size in each.reads) <= ROW_BYTES_MAX
        places = sorted(each.reads)
        assert len({place[:2] for place in places}) == len(places)
        assert sum(size for _, _, size in places) == sum(t.nbytes for t in MODEL.values())


class Failing(MemorySink):
    """A disk that is full after a few writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.finished = False

    def write(self, name: str, offset: int, data: memoryview) -> None:
        self.writes += 1
        if self.writes == 3:
            raise StoreError("the disk is full")
        super().write(name, offset, data)

    def finish(self) -> None:
        self.finished = True


@pytest.mark.parametrize("threads", [1, 4])
def test_a_full_disk_ends_the_merge(threads: int) -> None:
    sink = Failing()
    with pytest.raises(StoreError, match="the disk is full"):
        merge(inputs([MODEL, MODEL]), "mean", sink=sink, threads=threads)
    assert not sink.finished


@pytest.mark.parametrize("method", ["mean", "krum", "ties"])
def test_a_source_that_fails_ends_the_merge(method: str) -> None:
    bad = Watched(source(MODEL), fails_at=2)
    given = [*inputs([MODEL] * 3), Input(bad, "bad", key("bad"))]
    with pytest.raises(CheckpointError, match="on fire"):
        merge(given, method, sink=MemorySink(), base=source(MODEL), threads=3)


def test_who_is_told_of_progress_may_end_it() -> None:
    def refuse(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(inputs([MODEL, MODEL]), "mean", sink=MemorySink(), progress=refuse)
