"""What a merge that writes files has finished: lines in a file, each of them added whole.

| line | meaning |
|---|---|
| `{"journal": 1, "request": {...}}` | the first: what was asked for, and of which inputs |
| `{"begin": [[name, dtype, shape], ...]}` | every tensor of the result; voids all before |
| `{"done": name, "blake3": hex}` | this tensor is in its file and has this digest (`digest`) |
| `{"rejected": [label, key, tensor, reason]}` | this input is left out, for good |

Rules: a line is added by one write after the tensor was written. Nothing is synced: after a power
cut a line may speak of bytes that the disk does not have. So who reads it hashes what it names,
which also finds whatever else happened to the files. A last line without an end was being written
when its writer died, and counts as not there.

Error cases: another request than the one that is going on is a MergeError that says in what they
differ. What is no journal is one that was damaged: a MergeError, too, as it must not be overwritten
unasked.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sbp2p.errors import MergeError
from sbp2p.merge.report import Rejection
from sbp2p.merge.tensors import TensorSpec
from sbp2p.store.errors import os_errors
from sbp2p.store.files import write_all
from sbp2p.store.libc import close_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FORMAT: Final = 1
_RESTART: Final = "say --restart to begin anew, or give another --output"


@dataclass(slots=True)
class Entries:
    """What a journal says."""

    specs: dict[str, TensorSpec] | None = None
    """Every tensor of the result; None if it was not known yet."""
    done: dict[str, bytes] = field(default_factory=dict)
    """Tensor name to its digest."""
    rejected: list[Rejection] = field(default_factory=list)


class Journal:
    """The journal of one merge, open to be added to. Thread-safe: each line is one write."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it; raises StoreError."""
        self._path = path
        with os_errors("open", path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)

    def resume(self, request: Mapping[str, object]) -> Entries:
        """Return what was done for this request, which is noted when there is no journal yet.

        Raises:
            MergeError: the journal is of another request, or damaged.
        """
        lines = self._lines()
        if not lines:
            self._add({"journal": _FORMAT, "request": request})
            return Entries()
        try:
            before = lines[0]["request"]
            if lines[0]["journal"] != _FORMAT:
                raise ValueError("it is of another release")
            entries = _read(lines[1:])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise MergeError(f"{self._path} is damaged: {error}", hint=_RESTART) from error
        changed = _difference(before, json.loads(json.dumps(request)))
        if changed:
            raise MergeError(
                f"{self._path.parent} holds an unfinished merge with another {changed}",
                hint=f"give the same again to go on; {_RESTART}",
            )
        return entries

    def begin(self, specs: Mapping[str, TensorSpec]) -> None:
        """Note every tensor of the result: nothing is done."""
        self._add({"begin": [[spec.name, spec.dtype, spec.shape] for spec in specs.values()]})

    def done(self, name: str, digest: bytes) -> None:
        """Note that a tensor is in its file."""
        self._add({"done": name, "blake3": digest.hex()})

    def rejected(self, each: Rejection) -> None:
        """Note that an input is left out from now on."""
        self._add({"rejected": [each.label, each.key.hex(), each.tensor, each.reason]})

    def close(self) -> None:
        """Close the file; may be called again."""
        if self._descriptor != -1:
            close_file(self._descriptor)
            self._descriptor = -1

    def _lines(self) -> list[Any]:
        with os_errors("read", self._path):
            data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with os_errors("write to", self._path):
                os.ftruncate(self._descriptor, len(whole))
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise MergeError(f"{self._path} is damaged: {error}", hint=_RESTART) from error

    def _add(self, line: Mapping[str, object]) -> None:
        with os_errors("write to", self._path):
            data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            # the offset plays no part: the file was opened to be appended to
            write_all(self._descriptor, [data], 0)


def _read(lines: list[Any]) -> Entries:
    entries = Entries()
    for line in lines:
        ((kind, value),) = ((key, line[key]) for key in line if key != "blake3")
        if kind == "begin":
            specs = (
                TensorSpec(str(name), str(dtype), tuple(shape)) for name, dtype, shape in value
            )
            entries.specs = {spec.name: spec for spec in specs}
            entries.done.clear()
        elif kind == "done":
            entries.done[value] = bytes.fromhex(line["blake3"])
        elif kind == "rejected":
            label, key, tensor, reason = value
            entries.rejected.append(Rejection(label, bytes.fromhex(key), tensor, reason))
        else:
            raise ValueError(f"a line about {kind!r}")
    return entries


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in which of their parts two requests differ."""
    keys = sorted({*before, *now})
    return " and ".join(key for key in keys if before.get(key) != now.get(key))
