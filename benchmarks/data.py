"""The files that the benchmarks move: real safetensors layouts with bytes that do not compress."""

from __future__ import annotations

import filecmp
import json
import math
import shutil
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import WORK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

MIB = 1024 * 1024


def fresh_folder(*parts: str) -> Path:
    """Return an empty folder below the benchmarks' work folder."""
    folder = WORK.joinpath(*parts)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def tensor_shapes(total_bytes: int, hidden: int = 2048) -> Iterator[tuple[str, list[int]]]:
    """Yield names and bf16 shapes of a transformer-like model of about `total_bytes`.

    A large embedding, then blocks of four square matrices, two wide ones and two small norms.
    """
    layer = [("attn.q", [hidden, hidden]), ("attn.k", [hidden // 4, hidden])]
    layer += [("attn.v", [hidden // 4, hidden]), ("attn.o", [hidden, hidden])]
    layer += [("mlp.up", [4 * hidden, hidden]), ("mlp.down", [hidden, 4 * hidden])]
    layer += [("norm1", [hidden]), ("norm2", [hidden])]
    left = total_bytes - 4096
    shape = [min(32000, left // (8 * hidden)), hidden]
    yield "embed", shape
    left -= bf16_bytes(shape)
    number = 0
    while left > 0:
        for name, shape in layer:
            size = bf16_bytes(shape)
            if size > left:  # the last tensor takes what is left, as rows of `hidden`
                if left >= 2 * hidden:
                    yield f"layers.{number}.tail", [left // (2 * hidden), hidden]
                return
            yield f"layers.{number}.{name}", shape
            left -= size
        number += 1


def bf16_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of a bf16 tensor."""
    return 2 * math.prod(shape)


def safetensors_header(
    tensors: Iterable[tuple[str, list[int]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return what stands before the first byte of the first tensor."""
    header: dict[str, object] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    offset = 0
    for name, shape in tensors:
        end = offset + bf16_bytes(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def random_pieces(size: int, seed: int) -> Iterator[bytes]:
    """Yield `size` random bytes, a few at a time; the same seed gives the same bytes."""
    source = np.random.Generator(np.random.SFC64(seed))
    for start in range(0, size, MIB):
        yield source.bytes(min(MIB, size - start))


def write_safetensors(path: Path, tensors: Sequence[tuple[str, list[int]]], seed: int) -> None:
    """Write bf16 tensors of random bytes."""
    size = sum(bf16_bytes(shape) for _, shape in tensors)
    with path.open("wb") as file:
        file.write(safetensors_header(tensors))
        file.writelines(random_pieces(size, seed))


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
