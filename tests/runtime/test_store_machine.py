"""A download against a model of it, under any order of writing, killing and meddling."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbp2p.store import BlockMismatchError, BlockUnavailableError, Download, Store
from tests.runtime.store_samples import BLOCK, SMALL_BATCH, noise, sample

_SHARED = noise("machine-shared", 2 * BLOCK)
_VERSION = sample(
    {
        "a": noise("machine-a", 4 * BLOCK + 1),
        "d/b": _SHARED + noise("machine-b", 2 * BLOCK) + _SHARED,
        "empty": b"",
        "z": _SHARED[BLOCK:],
    }
)
_BLOCKS = len(_VERSION.table)
_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  # fsync costs nothing
_BATCH = SMALL_BATCH.commit_batch_bytes
blocks = st.integers(0, _BLOCKS - 1)


class DownloadMachine(RuleBasedStateMachine):
    """The model is two sets: committed blocks, and pending ones, which a kill does not lose."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=_FOLDER))
        self.root = self.folder / "out"
        self.store = Store.open(self.folder / "home", SMALL_BATCH)
        self.download: Download | None = None
        self.committed: set[int] = set()
        self.pending: dict[int, None] = {}
        self.finished = False

    def teardown(self) -> None:
        if self.download is not None:
            self.download.close()
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize()
    def start(self) -> None:
        self.open()

    @precondition(lambda self: self.download is None)
    @rule()
    def open(self) -> None:
        self.download = _VERSION.open(self.store, self.root)
        assert set(self.download.have) == self.committed | set(self.pending)

    def _commit_model(self) -> None:
        self.committed.update(self.pending)
        self.pending.clear()

    @precondition(lambda self: self.download is not None)
    @rule(index=blocks, cut=st.integers(0, BLOCK))
    def write(self, index: int, cut: int) -> None:
        assert self.download is not None
        data = _VERSION.block(index)
        self.download.write_block(index, [data[:cut], memoryview(data)[cut:]])
        if index not in self.committed:
            self.pending[index] = None
            if sum(map(_VERSION.table.length, self.pending)) >= _BATCH:
                self._commit_model()

    @precondition(lambda self: self.download is not None)
    @rule(index=blocks, other=blocks)
    def write_wrong(self, index: int, other: int) -> None:
        assert self.download is not None
        if index != other:
            try:
                self.download.write_block(index, [_VERSION.block(other)])
            except BlockMismatchError:
                return
            raise AssertionError

    @precondition(lambda self: self.download is not None)
    @rule()
    def commit(self) -> None:
        assert self.download is not None
        assert set(self.download.commit()) == set(self.pending)
        self._commit_model()

    @precondition(lambda self: self.download is not None)
    @rule()
    def close(self) -> None:
        assert self.download is not None
        self.download.close()
        self.download = None
        self._commit_model()

    @precondition(lambda self: self.download is not None)
    @rule()
    def kill(self) -> None:
        """What a dead process leaves: the lock is free, the memory is gone, the files stay."""
        assert self.download is not None
        self.download._file_lock.release()
        self.download.parts._files.close()
        self.download._recent.close(remove=False)
        self.store.close()
        self.store = Store.open(self.folder / "home", SMALL_BATCH)
        self.download = None

    @precondition(lambda self: self.download is None and not self.finished)
    @rule(data=st.data())
    def truncate_a_part(self, data: st.DataObject) -> None:
        parts = sorted(self.root.glob(".sbp2p/*/*.part"))
        part = data.draw(st.sampled_from(parts))
        if part.stat().st_size:
            part.write_bytes(b"")
            self._lose(int(part.stem))

    def _lose(self, number: int) -> None:
        for index, _, _ in _VERSION.table.file_blocks(number):
            self.committed.discard(index)
            if _VERSION.table.locations(index)[0][0] == number:  # else it is copied from there
                self.pending.pop(index, None)

    @precondition(lambda self: self.download is not None)
    @rule()
    def adopt(self) -> None:
        """Finds what is in other places, and loses nothing."""
        assert self.download is not None
        for _ in self.download.adopt_local():
            pass
        have = set(self.download.have)
        assert have >= self.committed | set(self.pending)
        self.committed, self.pending = have, {}

    @precondition(lambda self: self.download is not None)
    @rule()
    def finish(self) -> None:
        assert self.download is not None
        if self.download.missing.any():
            try:
                self.download.finish()
            except ValueError:
                self._commit_model()
                return
            raise AssertionError
        self.download.finish()
        self._commit_model()
        self.finished = True
        _VERSION.assert_finals(self.root)

    @invariant()
    def what_is_had_is_what_the_model_says(self) -> None:
        if self.download is not None:
            assert set(self.download.have) == self.committed | set(self.pending)

    @invariant()
    def finals_appear_together(self) -> None:
        if not self.finished:
            assert not any((self.root / path).exists() for path in _VERSION.files)

    @invariant()
    def no_wrong_byte_is_served(self) -> None:
        for index in range(_BLOCKS):
            try:
                view = self.store.read_block(_VERSION.table.digest(index))
            except BlockUnavailableError:
                assert index not in self.committed
            else:
                assert view == _VERSION.block(index)


TestDownload = DownloadMachine.TestCase
TestDownload.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
