"""One node for a trainer that runs as several processes: rank 0 has it, the others follow.

Theory of operation: a data-parallel trainer keeps the same weights on every rank, and all of them
reach the same step. Rank 0 alone talks to peers; the others wait for it, then take its weights.
What fails on rank 0 is raised on every rank, so that none of them waits for ever. Without
torch.distributed, or with one process, nothing is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sbp2p.errors import Sbp2pError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_UNCHANGED, _CHANGED, _FAILED = 0, 1, 2


def count() -> int:
    """Return how many processes the trainer runs as."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Return whether this process is the one that talks to peers."""
    return count() == 1 or dist.get_rank() == 0


def total(samples: int, device: torch.device) -> int:
    """Return the sum over all ranks; every rank has to call this."""
    if count() == 1:
        return samples
    number = torch.tensor(samples, dtype=torch.int64, device=device)
    dist.all_reduce(number)
    return int(number.item())


def on_first(
    work: Callable[[], bool],
    tensors: Callable[[], Iterable[torch.Tensor]],
    device: torch.device,
) -> None:
    """Run `work` on rank 0, then give its tensors to all ranks; every rank has to call this.

    Args:
        work: returns whether it changed the tensors; not called on other ranks.
        tensors: what it may have changed, in the same order on each rank.
        device: where the ranks exchange numbers.

    Raises:
        Exception: what `work` raised, on rank 0.
        Sbp2pError: on the others when it did.
    """
    if count() == 1:
        work()
        return
    outcome, error = _UNCHANGED, None
    if is_first():
        try:
            outcome = _CHANGED if work() else _UNCHANGED
        except Exception as problem:  # the other ranks wait: they are told before it is raised
            outcome, error = _FAILED, problem
    told = torch.tensor(outcome, device=device)
    dist.broadcast(told, src=0)
    if error is not None:
        raise error
    if told.item() == _FAILED:
        raise Sbp2pError("rank 0 failed to merge with its peers", hint="its own error says why")
    if told.item() == _CHANGED:
        with torch.no_grad():
            for tensor in tensors():
                _broadcast(tensor, device)


def _broadcast(tensor: torch.Tensor, device: torch.device) -> None:
    """Make a tensor what it is on rank 0, wherever and however it lies; as bytes, of any dtype."""
    if not tensor.numel():
        return
    flat = tensor.detach().to(device).contiguous().reshape(-1).view(torch.uint8)
    dist.broadcast(flat, src=0)
    if not is_first():
        tensor.copy_(flat.view(tensor.dtype).reshape(tensor.shape))
