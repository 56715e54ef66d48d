"""Training that went on while a merge was under way, carried over onto its result.

    result = merged + (now - before)

`before` is the snapshot that went into the merge, `now` the model as it is when the result comes.
Where nothing changed in between, the result is the merged value, bit for bit.

| kind | result |
|---|---|
| floating, complex | in float64, rounded once; where `now` equals `before`: the merged value |
| integers | the same, in the integers of that width: a counter keeps what it counted |
| bool, and dtypes without arithmetic | `now` where it changed, else the merged value |

A tensor that is in `now` alone, such as state that an optimizer made meanwhile, stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import MergeError

from .slots import tensor_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHUNK: Final = 1 << 16
"""Elements at a time: 512 KiB for each float64 operand, so that they stay in the cache."""

_SIGNED: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WITHOUT_ARITHMETIC: Final = ("BOOL", "F8_E8M0")


def carry_over(
    merged: Mapping[str, RawTensor],
    before: Mapping[str, RawTensor],
    now: Mapping[str, RawTensor],
) -> dict[str, RawTensor]:
    """Return the merged tensors with the change from `before` to `now` added.

    Args:
        merged: the result of a merge, with the names, dtypes and shapes of `before`.
        before: what this peer's model was when the merge began.
        now: what it is, of the same dtypes and shapes.

    Raises:
        MergeError: it is another model than it was.
    """
    result = dict(merged)
    for name, tensor in now.items():
        if name not in merged:
            result[name] = tensor
            continue
        if (tensor.dtype, tensor.shape) != (merged[name].dtype, merged[name].shape):
            raise MergeError(
                f"tensor {shown(name)} is another one than when the round began",
                hint="give every step the same model",
            )
        if name in before and not _same(tensor, before[name]):
            result[name] = _moved(merged[name], before[name], tensor)
    return result


def _same(left: RawTensor, right: RawTensor) -> bool:
    """Compare the bytes, eight at a time where they can be; a memoryview takes them one by one."""
    size = left.data.nbytes
    dtype, count = ("U8", size) if size % 8 else ("I64", size // 8)
    ours, theirs = (tensor_of(RawTensor("", dtype, (count,), each.data)) for each in (left, right))
    return torch.equal(ours, theirs)


def _moved(merged: RawTensor, before: RawTensor, now: RawTensor) -> RawTensor:
    data = memoryview(bytearray(merged.data))
    moved = RawTensor(merged.name, merged.dtype, merged.shape, data)
    target, start, end = (_numbers(each) for each in (moved, before, now))
    for at in range(0, target.numel(), _CHUNK):
        part = slice(at, at + _CHUNK)
        _move(target[part], start[part], end[part])
    return moved


def _numbers(tensor: RawTensor) -> torch.Tensor:
    """Return the elements in a row, complex ones as two."""
    values = tensor_of(tensor)
    if tensor.dtype in _WITHOUT_ARITHMETIC:
        return values.reshape(-1).view(torch.bool)
    return (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)


def _move(target: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> None:
    """Make what was merged, in `target`, what it is with the progress added."""
    if target.dtype == torch.bool:
        values, first, last = (each.view(torch.uint8) for each in (target, start, end))
        values.copy_(torch.where(last != first, last, values))
    elif target.is_floating_point():
        moved = torch.sub(end.to(torch.float64), start.to(torch.float64))
        moved += target.to(torch.float64)
        # adding 0 would make 0.0 of a merged -0.0
        stays = _bits(start) == _bits(end)
        _bits(target).copy_(torch.where(stays, _bits(target), _bits(moved.to(target.dtype))))
    else:
        _bits(target).add_(_bits(end) - _bits(start))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_SIGNED[tensor.element_size()])
