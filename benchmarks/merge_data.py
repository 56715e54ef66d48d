"""The models that `benchmarks.merge` merges, and what the right results are.

    python -m benchmarks.merge_data make FOLDER --mib 1024 --dtype BF16
    python -m benchmarks.merge_data check FOLDER OUTPUT --method mean

`make` writes a base and eight models that were trained from it, as far as numbers can tell: each
weight is the base's plus a tenth as much of something of its own. The shapes are Llama's. `check`
compares parts of every tensor of a result with what this file computes in another way: the mean
and the median in 80-bit floating point, rounded once; TIES in float64, over whole tensors.

Both run in processes of their own, so that the benchmark stays small: what it holds would count as
its children's.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

INPUTS: Final = 8
DENSITY: Final = 0.2
MIB: Final = 1024 * 1024
WIDTH: Final = {"F32": 4, "BF16": 2}
_POOL: Final = 1 << 24
_PIECE: Final = 1 << 22
_WINDOW: Final = 1 << 14
_TIES_ELEMENTS: Final = 1 << 23
"""Larger tensors are left out of the check of TIES, which needs them whole, and sorted."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a model."""

    hidden: int
    middle: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor, by its name in a Llama."""
        hidden, middle = self.hidden, self.middle
        narrow = hidden // self.heads * self.kv_heads
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, hidden)}
        for number in range(self.layers):
            layer = f"model.layers.{number}"
            found |= {
                f"{layer}.input_layernorm.weight": (hidden,),
                f"{layer}.mlp.down_proj.weight": (hidden, middle),
                f"{layer}.mlp.gate_proj.weight": (middle, hidden),
                f"{layer}.mlp.up_proj.weight": (middle, hidden),
                f"{layer}.post_attention_layernorm.weight": (hidden,),
                f"{layer}.self_attn.k_proj.weight": (narrow, hidden),
                f"{layer}.self_attn.o_proj.weight": (hidden, hidden),
                f"{layer}.self_attn.q_proj.weight": (hidden, hidden),
                f"{layer}.self_attn.v_proj.weight": (narrow, hidden),
            }
        return {**found, "model.norm.weight": (hidden,)}

    def config(self, dtype: str) -> dict[str, Any]:
        """Return its config.json, which mergekit reads the architecture from."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.middle,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "num_hidden_layers": self.layers,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": True,
            "torch_dtype": {"F32": "float32", "BF16": "bfloat16"}[dtype],
        }


def shape_of(size: int, dtype: str) -> Shape:
    """Return a model of `size` bytes: layers of its width, and the embedding takes the rest."""
    hidden, middle, share = (2048, 5632, 5) if size >= 512 * MIB else (1024, 2816, 4)
    one = Shape(hidden, middle, 32, 8, 1, 0)
    layer = sum(math.prod(shape) for name, shape in one.tensors().items() if "layers" in name)
    elements = size // WIDTH[dtype]
    layers = max(1, (elements - elements // share) // layer)
    vocabulary = (elements - layers * layer - hidden) // hidden
    return Shape(hidden, middle, 32, 8, layers, vocabulary)


def to_bits(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Return what a file holds for these numbers, rounded once, ties to even."""
    if dtype == "F32":
        return values
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bits(bits: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Return the numbers that a file holds."""
    if dtype == "F32":
        return bits.view(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_once(exact: NDArray[np.longdouble], dtype: str) -> NDArray[Any]:
    """Round 80-bit numbers to a dtype in one step: to float32 by rounding to odd, where needed."""
    nearest = exact.astype(np.float32)
    if dtype == "F32":
        return nearest
    error = np.abs(exact) - np.abs(nearest.astype(np.longdouble))
    bits = nearest.view(np.int32)
    step = np.sign(error).astype(np.int32) * ((bits & 1) == 0)
    return to_bits((bits + step).view(np.float32), dtype)


def make(folder: Path, size: int, dtype: str) -> None:
    """Write the base and the inputs as folders below `folder`."""
    shape = shape_of(size, dtype)
    noise = np.random.Generator(np.random.SFC64(1))
    pool = (noise.standard_normal(_POOL, np.float32) * np.float32(0.02)).astype(np.float32)
    for name in names():
        target = folder / name
        target.mkdir(parents=True)
        (target / "config.json").write_text(json.dumps(shape.config(dtype), indent=2) + "\n")
        with (target / "model.safetensors").open("wb") as file:
            file.write(_header(shape.tensors(), dtype))
            for tensor, dimensions in shape.tensors().items():
                for piece in _values(pool, name, tensor, math.prod(dimensions)):
                    file.write(to_bits(piece, dtype).data)


def names() -> list[str]:
    """Return the names of the models: the base, then the inputs."""
    return ["base", *(f"input{number}" for number in range(INPUTS))]


def _header(tensors: Mapping[str, Sequence[int]], dtype: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        start, end = end, end + math.prod(shape) * WIDTH[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _values(
    pool: NDArray[np.float32], model: str, tensor: str, count: int
) -> Iterator[NDArray[np.float32]]:
    """Yield the numbers of a tensor: slices of a pool of noise, at places that names decide."""
    for start in range(0, count, _PIECE):
        length = min(_PIECE, count - start)
        values = _slice(pool, f"{tensor} {start}", length)
        if model != "base":
            values = values + np.float32(0.1) * _slice(pool, f"{model} {tensor} {start}", length)
        yield values.astype(np.float32)


def _slice(pool: NDArray[np.float32], seed: str, length: int) -> NDArray[np.float32]:
    place = np.random.Generator(np.random.SFC64(list(seed.encode()))).integers(len(pool) - length)
    return pool[place : place + length]


class Reader:
    """One safetensors file, by tensor name."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        self.tensors = header
        self._path = path
        self._start = 8 + length

    def read(self, name: str, start: int, count: int) -> NDArray[Any]:
        """Return some elements of a tensor, as their bits."""
        dtype = self.tensors[name]["dtype"]
        offset = self._start + self.tensors[name]["data_offsets"][0] + start * WIDTH[dtype]
        kind = np.float32 if dtype == "F32" else np.uint16
        return np.fromfile(self._path, kind, count, offset=offset)


def read_folder(folder: Path) -> dict[str, Reader]:
    """Return the file of each tensor of a model, however many files it has."""
    readers = [Reader(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: reader for reader in readers for name in reader.tensors}


def expected(rows: NDArray[np.float32], base: NDArray[np.float32], method: str) -> NDArray[Any]:
    """Return the exact result of elements of all inputs; of whole tensors for `ties`."""
    if method == "mean":
        return np.asarray(rows.astype(np.longdouble).sum(0) / len(rows))
    if method == "median":
        ordered = np.sort(rows, axis=0).astype(np.longdouble)
        return np.asarray((ordered[len(rows) // 2 - 1] + ordered[len(rows) // 2]) / 2)
    deltas = rows.astype(np.float64) - base
    keep = max(1, int(DENSITY * base.size))
    for row in deltas:
        threshold = np.partition(np.abs(row), base.size - keep)[base.size - keep]
        row[np.abs(row) < threshold] = 0
    elected = np.sign(deltas.sum(0))  # of an even vote nobody wins, and the base stays
    agreeing = (np.sign(deltas) == elected) & (elected != 0)
    count = np.maximum(agreeing.sum(0), 1)
    update = (deltas * agreeing).sum(0) / count
    moved = np.where(update == 0, base, base + update)  # a base of -0.0 stays what it is
    return np.asarray(moved.astype(np.longdouble))


def check(folder: Path, output: Path, method: str) -> dict[str, Any]:
    """Compare a result with the right one; return how many elements differ, and by how much."""
    inputs = [Reader(folder / name / "model.safetensors") for name in names()[1:]]
    base = Reader(folder / "base" / "model.safetensors")
    result = read_folder(output)
    if set(result) != set(base.tensors):
        raise SystemExit(f"{output} has other tensors than the inputs")
    compared = different = 0
    worst = 0.0
    for name, about in base.tensors.items():
        dtype, count = about["dtype"], math.prod(about["shape"])
        if result[name].tensors[name] != {**about, **_place(result[name].tensors[name])}:
            raise SystemExit(f"{output}: tensor {name} has another shape or dtype")
        for start, length in _windows(name, count, whole=method == "ties"):
            rows = [from_bits(each.read(name, start, length), dtype) for each in inputs]
            origin = from_bits(base.read(name, start, length), dtype)
            exact = expected(np.stack(rows), origin, method)
            right = round_once(exact, dtype)
            found = result[name].read(name, start, length)
            wrong = right.view(np.uint8).reshape(length, -1) != found.view(np.uint8).reshape(
                length, -1
            )
            compared += length
            different += int(wrong.any(axis=1).sum())
            away = np.abs(from_bits(found, dtype) - from_bits(right, dtype))
            scale = float(np.abs(from_bits(right, dtype)).max())
            worst = max(worst, float(away.max()) / scale)
    return {"compared": compared, "different": different, "worst": worst}


def _place(about: Mapping[str, Any]) -> dict[str, Any]:
    return {"data_offsets": about["data_offsets"]}


def _windows(name: str, count: int, *, whole: bool) -> Iterator[tuple[int, int]]:
    if whole:
        if count <= _TIES_ELEMENTS:
            yield 0, count
        return
    places = np.random.Generator(np.random.SFC64(list(name.encode())))
    for _ in range(8):
        length = min(_WINDOW, count)
        yield int(places.integers(count - length + 1)), length


def main() -> int:
    """Make models, or check a result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["make", "check"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--dtype", choices=list(WIDTH), default="BF16")
    parser.add_argument("--method", choices=["mean", "ties", "median"], default="mean")
    args = parser.parse_args()
    if args.what == "make":
        make(args.folder, args.mib * MIB, args.dtype)
    else:
        print(json.dumps(check(args.folder, args.output, args.method)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
