"""Which lines of the code under test have run: the feedback that keeps good mutants.

Theory of operation. A trace function is asked at every call. A function all of whose lines have run
is not traced into any more, so the cost, high at first, falls to that of one look-up a call. No
third-party tracer is used: the ones for whole test runs are slow to read after every input.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import CodeType, FrameType, TracebackType

_NONE: set[int] = set()


class LineTracer:
    """A context in which lines of files under `folders` are recorded as they run."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(str(folder) + "/" for folder in folders)
        self._left: dict[CodeType, set[int]] = {}
        self._before: Any = None
        self.reached: dict[str, set[int]] = {}
        """Path of a source file to the numbers of the lines that ran."""
        self.count = 0
        """How many lines have run; grows when something new did."""

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.settrace(self._before)

    def _on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = self._lines_of(code)
        return self._on_line if left else None

    def _lines_of(self, code: CodeType) -> set[int]:
        if not code.co_filename.startswith(self._folders):
            return _NONE
        self.reached.setdefault(code.co_filename, set())
        lines = {line for _, _, line in code.co_lines() if line is not None}
        return lines - {code.co_firstlineno} or lines

    def _on_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            left = self._left[frame.f_code]
            line = frame.f_lineno
            if line in left:
                left.discard(line)
                self.reached[frame.f_code.co_filename].add(line)
                self.count += 1
        return self._on_line
