"""What is on this machine need not travel: adopting files and copying blocks.

Two phases, each a row of steps so that it can be shown and stopped:
    hash   files under final names that nobody has looked into, and part files that nobody vouches
           for (their index rows were lost, or someone wrote to them)
    copy   wanted blocks that lie in any indexed file (see copying.py), each verified; so a new
           version costs only what changed
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from sbp2p.store.copying import LocalCopier
from sbp2p.store.errors import os_errors
from sbp2p.store.files import read_into
from sbp2p.store.hashing import STEP_BYTES, FileCheck, check_file
from sbp2p.store.records import AdoptStep
from sbp2p.store.targets import TargetState, conflict
from sbp2p_protocol.limits import BLOCK_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sbp2p.store.download import Download
    from sbp2p.store.targets import Target


class Adoption:
    """Runs the phases for one download."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._table = download.table
        self._parts = download.parts
        self._found: list[int] = []
        self._found_bytes = 0
        self._adopted = 0
        self._checked = 0
        self._total = 0

    def steps(self) -> Iterator[AdoptStep]:
        """Hash, then copy; see `Download.adopt_local`."""
        targets = [
            target
            for target in self._parts.targets.values()
            if target.suspect or target.state is TargetState.EXISTING or self._is_contested(target)
        ]
        self._total = sum(self._table.files[target.number].size for target in targets)
        self._total += sum(map(self._table.length, self._download.missing))
        for target in targets:
            if target.state is TargetState.EXISTING or self._is_contested(target):
                yield from self._adopt_existing(target)
            if target.suspect and target.state is TargetState.PART:
                yield from self._recheck_part(target)
        yield from self._copy()
        self._download.commit()
        yield self._step()

    def _is_contested(self, target: Target) -> bool:
        """Whether a part file could never get its final name, and nobody has looked yet."""
        return target.shadowed and not self._download.overwrite

    def _adopt_existing(self, target: Target) -> Iterator[AdoptStep]:
        check = FileCheck()
        for step in self._hash(target.final, target.number, check):
            if check.wrong and not self._download.overwrite:
                break
            yield step
        if check.stamp is not None:
            self._parts.take_in_place(target, check.stamp)
            for block, _ in check.right:
                if not self._parts.places(block):
                    self._take(block)
        elif not self._download.overwrite:
            self._parts.discard_unused(self._download.have)
            raise conflict(target.final)
        else:
            self._parts.make(target)
            yield from self._spread(
                target.final, target.number, {block for block, _ in check.right}
            )

    def _recheck_part(self, target: Target) -> Iterator[AdoptStep]:
        check = FileCheck()
        yield from self._hash(target.part, target.number, check)
        self._parts.trust(target)
        spread = set()
        for block, count in Counter(block for block, _ in check.right).items():
            if count == len(self._parts.places(block)):
                self._take(block)
            else:
                spread.add(block)
        self._download.commit()
        yield from self._spread(target.part, target.number, spread)

    def _hash(self, path: str, number: int, check: FileCheck) -> Iterator[AdoptStep]:
        start = self._checked
        with os_errors("read", path):
            for done in check_file(path, self._table, number, check):
                self._checked = start + done
                yield self._step()
        self._checked = start + self._table.files[number].size

    def _spread(self, path: str, number: int, blocks: set[int]) -> Iterator[AdoptStep]:
        """Write blocks that are right in one file to all their places."""
        buffer = memoryview(bytearray(BLOCK_MAX))
        with os_errors("read", path), Path(path).open("rb", buffering=0) as file:
            for block, offset, length in self._table.file_blocks(number):
                if block in blocks:
                    read_into(file.fileno(), buffer[:length], offset)
                    self._write(block, buffer[:length])
                    if self._found_bytes >= STEP_BYTES:
                        yield self._step()
        yield self._step()

    def _copy(self) -> Iterator[AdoptStep]:
        for found in LocalCopier(self._download).steps():
            self._checked += found.checked
            for block in found.blocks:
                self._count(block)
            yield self._step()

    def _write(self, block: int, view: memoryview) -> None:
        if self._download.write_block(block, [view]):
            self._count(block)

    def _take(self, block: int) -> None:
        """Count a block whose bytes are right in all its places."""
        if not self._download.have.get(block):
            self._download.note_written(block)
            self._count(block)

    def _count(self, block: int) -> None:
        self._found.append(block)
        self._found_bytes += self._table.length(block)
        self._adopted += self._table.length(block)

    def _step(self) -> AdoptStep:
        found, self._found, self._found_bytes = tuple(self._found), [], 0
        return AdoptStep(found, self._adopted, self._checked, self._total)
