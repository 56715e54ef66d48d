"""Which blocks a part of a version needs: by file glob, by tensor name or glob, or both.

A glob is matched against the whole path or tensor name as in a shell, except that `*` also crosses
`/` (Hugging Face's `allow_patterns` work this way); one that ends in `/` means all below it.
A pattern that is exactly a name means that name, whatever characters it holds.

A tensor alone cannot be opened by anybody's reader, so with it come the bytes before the first and
after the last tensor of its file: the header of a safetensors or GGUF file, the pickle and the
directory of a PyTorch archive, and for a storage also the local header right before it. The file
then has its full length, with holes where nothing was asked for.

Error cases: a pattern that matches nothing is a NotFoundError that names it.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING

from sbp2p.checkpoint.formats.pytorch_zip import STORAGE_DTYPE
from sbp2p.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.tensor_index import TensorEntry


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of a version: the unique blocks it needs and what they make."""

    wanted: Bitmap
    numbers: tuple[int, ...]
    """Files that something is wanted of, by their number in the block table."""
    files: tuple[str, ...]
    """Paths of those that are asked for by name, and will be complete."""
    tensors: tuple[TensorEntry, ...]
    """Tensors that will be complete, in files that may not be."""


def matching(patterns: Iterable[str], names: Sequence[str], what: str) -> list[str]:
    """Return the names that a pattern matches, in their own order.

    Args:
        patterns: names or globs.
        names: what there is.
        what: `file` or `tensor`, for the error.

    Raises:
        NotFoundError: a pattern matches no name.
    """
    there = set(names)
    found: set[str] = set()
    for pattern in patterns:
        if pattern in there:
            found.add(pattern)
            continue
        glob = pattern + "*" if pattern.endswith("/") else pattern
        match = re.compile(translate(glob)).match
        hits = {name for name in there if match(name)}
        if not hits:
            near = difflib.get_close_matches(pattern, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {len(names)} {what}s"
            raise NotFoundError(f"no {what} matches {pattern!r}", hint=hint)
        found |= hits
    return [name for name in names if name in found]


def select_blocks(
    table: BlockTable,
    entries: Iterable[TensorEntry] = (),
    *,
    files: Sequence[str] = (),
    tensors: Sequence[str] = (),
) -> Selection:
    """Return the blocks of every file and every tensor that matches; of all, if nothing is asked.

    Args:
        table: blocks of the version.
        entries: its tensor index; needed only with `tensors`.
        files: path globs.
        tensors: tensor names or globs.
    """
    paths = [file.path for file in table.files]
    if not files and not tensors:
        everything = range(len(paths))
        return Selection(table.blocks_of_files(everything), tuple(everything), tuple(paths), ())
    chosen = matching(files, paths, "file") if files else []
    ranges: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for path in chosen:
        number = _number(table, path)
        ranges[number].append((0, table.files[number].size))
    picked = _tensor_ranges(table, list(entries), tensors, ranges) if tensors else ()
    numbers = tuple(sorted(ranges))
    return Selection(table.blocks_for(ranges), numbers, tuple(chosen), tuple(picked))


def _tensor_ranges(
    table: BlockTable,
    entries: list[TensorEntry],
    patterns: Sequence[str],
    ranges: defaultdict[int, list[tuple[int, int]]],
) -> list[TensorEntry]:
    """Add the byte ranges that the matching tensors need, and return these tensors."""
    if not entries:
        raise NotFoundError(
            "this version has no tensor index", hint="select by file, or fetch all of it"
        )
    names = set(matching(patterns, list(dict.fromkeys(e.name for e in entries)), "tensor"))
    by_file: defaultdict[str, list[TensorEntry]] = defaultdict(list)
    for entry in entries:
        by_file[entry.file].append(entry)
    picked: list[TensorEntry] = []
    for path, inside in by_file.items():
        number = _number(table, path)
        size = table.files[number].size
        inside.sort(key=lambda entry: entry.offset)
        end = 0
        some = False
        for entry in inside:
            if entry.name in names:
                some = True
                picked.append(entry)
                start = end if entry.dtype == STORAGE_DTYPE else entry.offset
                ranges[number].append((start, entry.offset + entry.length - start))
            end = max(end, entry.offset + entry.length)
        if some:
            ranges[number] += [(0, inside[0].offset), (end, size - end)]
    return picked


def _number(table: BlockTable, path: str) -> int:
    number = table.file_number(path)
    if number is None:
        raise NotFoundError(f"the version has no file {path!r}, which its tensor index names")
    return number
