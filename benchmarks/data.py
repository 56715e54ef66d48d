"""The files that the benchmarks move: real safetensors layouts with bytes that do not compress."""

from __future__ import annotations

import filecmp
import json
import random
import shutil
from typing import TYPE_CHECKING

from benchmarks.harness import WORK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MIB = 1024 * 1024


def fresh_folder(*parts: str) -> Path:
    """Return an empty folder below the benchmarks' work folder."""
    folder = WORK.joinpath(*parts)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def tensor_shapes(total_bytes: int) -> Iterator[tuple[str, list[int]]]:
    """Yield names and bf16 shapes of a transformer-like model of about `total_bytes`.

    A large embedding, then blocks of four square matrices, two wide ones and two small norms.
    """
    hidden = 2048
    layer = [("attn.q", [hidden, hidden]), ("attn.k", [hidden // 4, hidden])]
    layer += [("attn.v", [hidden // 4, hidden]), ("attn.o", [hidden, hidden])]
    layer += [("mlp.up", [4 * hidden, hidden]), ("mlp.down", [hidden, 4 * hidden])]
    layer += [("norm1", [hidden]), ("norm2", [hidden])]
    left = total_bytes - 4096
    shape = [min(32000, left // (8 * hidden)), hidden]
    yield "embed", shape
    left -= 2 * shape[0] * shape[1]
    number = 0
    while left > 0:
        for name, shape in layer:
            size = 2
            for length in shape:
                size *= length
            if size > left:  # the last tensor takes what is left, as rows of `hidden`
                if left >= 2 * hidden:
                    yield f"layers.{number}.tail", [left // (2 * hidden), hidden]
                return
            yield f"layers.{number}.{name}", shape
            left -= size
        number += 1


def write_safetensors(path: Path, tensors: Sequence[tuple[str, list[int]]], seed: int) -> None:
    """Write bf16 tensors of random bytes; the same seed gives the same file."""
    header: dict[str, object] = {}
    offset = 0
    for name, shape in tensors:
        size = 2
        for length in shape:
            size *= length
        data_offsets = [offset, offset + size]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": data_offsets}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    source = random.Random(seed)  # noqa: S311  (content for a benchmark)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while offset:
            piece = min(offset, 16 * MIB)
            file.write(source.randbytes(piece))
            offset -= piece


def model_file(size: int, seed: int = 1) -> Path:
    """Return a safetensors file of about `size` bytes, made once and kept below the work folder."""
    folder = WORK / "data" / f"{size}-{seed}"
    path = folder / "model.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / "unfinished"
        write_safetensors(unfinished, list(tensor_shapes(size)), seed)
        unfinished.rename(path)
    return path


def require_same(source: Path, copy: Path) -> None:
    """End the benchmark if the copy is not the source, byte for byte."""
    if not filecmp.cmp(source, copy, shallow=False):
        raise SystemExit(f"{copy} does not have the bytes of {source}")
