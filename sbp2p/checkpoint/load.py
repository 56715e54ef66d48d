"""Arrays for torch or NumPy out of checkpoint files.

What can be loaded: safetensors (one file, shards, a directory) and the unquantised tensors of GGUF.
PyTorch archives are replicated but never opened: their tensors are described by a pickle, and an
unpickler is an interpreter, the restricted one included (CVE-2025-32434). Quantised and unknown
dtypes are refused here and read as bytes by `reader.TensorReader`.

torch and NumPy are imported when the first array is asked for, not before.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.checkpoint.formats.pytorch_zip import STORAGE_DTYPE
from sbp2p.checkpoint.reader import PathLike, RawTensor, TensorReader
from sbp2p.checkpoint.select import matching
from sbp2p.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    from sbp2p.checkpoint.formats import TensorSpan

Framework = Literal["torch", "numpy"]

TORCH_DTYPES: Final = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16",
    "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
"""safetensors' dtypes by torch's names for them."""
NUMPY_DTYPES: Final = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16",
    "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16",
    "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip
"""The same by NumPy's names."""


def load_tensors(
    path: PathLike | Sequence[PathLike],
    names: Iterable[str] | str | None = None,
    framework: Framework = "torch",
) -> dict[str, Any]:
    """Load tensors by name from safetensors or GGUF files.

    Args:
        path: a file, a shard index, a directory, or several files; `reader` says what each means.
        names: tensor names or globs, or a single one; None for all.
        framework: `torch` gives torch.Tensor on the CPU, `numpy` gives numpy.ndarray.

    Returns:
        name to array, in the shape and dtype that the file states, writable, in its own memory.

    Raises:
        CheckpointError: a file is malformed, changed, unreadable or of another format; a dtype that
            the framework does not have; or the framework is not installed.
        NotFoundError: a name that no file has.
    """
    module = _import(framework)
    with TensorReader(path) as reader:
        wanted = (names,) if isinstance(names, str) else names
        chosen = reader.names() if wanted is None else matching(wanted, reader.names(), "tensor")
        # every dtype is looked up before the first byte is read
        dtypes = [_dtype(framework, module, reader.span(name)) for name in chosen]
        return {
            name: _array(framework, module, reader.read(name), dtype)
            for name, dtype in zip(chosen, dtypes, strict=True)
        }


def _array(framework: Framework, module: ModuleType, tensor: RawTensor, dtype: Any) -> Any:
    if framework == "torch" and not tensor.data.nbytes:
        return module.empty(tensor.shape, dtype=dtype)  # frombuffer refuses an empty buffer
    return module.frombuffer(tensor.data, dtype=dtype).reshape(tensor.shape)


def _dtype(framework: Framework, module: ModuleType, tensor: TensorSpan) -> Any:
    names = TORCH_DTYPES if framework == "torch" else NUMPY_DTYPES
    found = getattr(module, names.get(tensor.dtype, ""), None)
    if found is not None:
        return found
    if tensor.dtype == STORAGE_DTYPE:
        raise CheckpointError(
            "a PyTorch archive needs its pickle to be loaded, which sbp2p never opens",
            hint="if you trust it: safetensors.torch.save_file(torch.load(FILE), NEW)",
        )
    raise CheckpointError(
        f"tensor {shown(tensor.name)} is {tensor.dtype}, which {framework} has no dtype for",
        hint="read its bytes with TensorReader, or select other tensors",
    )


def _import(framework: Framework) -> ModuleType:
    if framework not in ("torch", "numpy"):
        raise ValueError(f"framework is {framework!r}, not 'torch' or 'numpy'")
    if sys.byteorder != "little":
        raise CheckpointError("tensors are stored little-endian, and this machine is not")
    try:
        return importlib.import_module(framework)
    except ImportError as error:
        raise CheckpointError(
            f"{framework} is not installed", hint="pip install 'sbp2p[torch]'"
        ) from error
