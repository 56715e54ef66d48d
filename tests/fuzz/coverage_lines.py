"""Which lines of the code under test have run: the feedback that keeps good mutants.

Theory of operation. A trace function is asked at every call. A function all of whose lines have run
is not traced into any more. What is left costs about ten times what the code does, so the engine
traces every input only for as long as there is news. No third-party tracer is used: the ones for
whole test runs are slow to read after every input.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType, TracebackType

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
        return _body_lines(code)

    def _on_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            left = self._left[frame.f_code]
            line = frame.f_lineno
            if line in left:
                left.discard(line)
                self.reached[frame.f_code.co_filename].add(line)
                self.count += 1
        return self._on_line


def lines_of_functions(path: str) -> set[int]:
    """Return the numbers of all lines in the functions of a source file."""
    code = compile(Path(path).read_text(encoding="utf-8"), path, "exec")
    return {line for inner in _inner(code) for line in _body_lines(inner)}


def _inner(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions inside; class bodies run at import and are only looked into."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_OPTIMIZED:
                yield constant
            yield from _inner(constant)


def _body_lines(code: CodeType) -> set[int]:
    lines = {line for _, _, line in code.co_lines() if line is not None}
    return lines - {code.co_firstlineno} or lines
