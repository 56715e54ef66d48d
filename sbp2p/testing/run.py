"""Run something under a virtual clock so that its seed repeats it.

What is made to repeat itself, and how:

- Time: trio's mock clock, which jumps to the next deadline as soon as nothing can run.
- The scheduler: trio runs the tasks of one step in random order, so that nobody relies on one. It
  can sort and then shuffle them by a generator of its own (what pytest-trio turns on for
  hypothesis); `run_virtual` seeds that one.
- Blocking calls: inline (`sbp2p.calls`).
- The nodes' dice, keys, addresses and dates: from the seed.

Not repeated are Noise's ephemeral keys, and so the ciphertexts; their lengths and times are.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio
from trio.testing import MockClock

from .network import VirtualNetwork

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")

SEED_VARIABLE: Final = "SBP2P_SEED"
SEEDS_VARIABLE: Final = "SBP2P_SEEDS"
TRACE_VARIABLE: Final = "SBP2P_TRACE"
_PREFIX: Final = "sbp2p-virtual-"
_MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108  # Linux: files that no disk slows down


def chosen_seeds(default: int) -> range:
    """Return the seeds to run: $SBP2P_SEED alone, or as many as $SBP2P_SEEDS or `default` says."""
    if (seed := os.environ.get(SEED_VARIABLE)) is not None:
        return range(int(seed), int(seed) + 1)
    return range(int(os.environ.get(SEEDS_VARIABLE, default)))


def run_virtual(
    main: Callable[[VirtualNetwork], Awaitable[T]],
    *,
    seed: int = 0,
    limit_s: float = 3600.0,
    folder: Path | None = None,
    **options: Any,
) -> T:
    """Run `main(network)` on a new virtual network and return its result.

    Whatever it raises gets a note that says how to repeat the run.

    Args:
        main: the scenario. Nodes that still run when it returns are ended.
        seed: of everything random.
        limit_s: virtual seconds after which it is given up: something hangs.
        folder: for the homes of the nodes; a temporary one, in memory if there is such, if None.
        options: of `VirtualNetwork`.

    Raises:
        trio.TooSlowError: `limit_s` passed.
    """
    with _repeatable(seed), _folder(folder) as place, _tracing() as trace_to:
        task = partial(
            _run, main, seed=seed, limit_s=limit_s, folder=place, trace_to=trace_to, **options
        )
        try:
            return trio.run(task, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            note = f"repeat this run with {SEED_VARIABLE}={seed}"
            error.add_note(note)
            print(note, file=sys.stderr)  # noqa: T201  # a killed run shows no traceback
            raise


async def _run(
    main: Callable[[VirtualNetwork], Awaitable[T]],
    *,
    seed: int,
    limit_s: float,
    folder: Path,
    **options: Any,
) -> T:
    try:
        with trio.fail_after(limit_s):
            async with trio.open_nursery() as nursery:
                result = await main(VirtualNetwork(seed, folder, nursery, **options))
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    return result


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Have trio schedule by `seed`."""
    scheduler: Any = import_module("trio._core._run")
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        scheduler._r.setstate(before[1])


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    memory = os.access(_MEMORY_FOLDER, os.W_OK)
    parent = _MEMORY_FOLDER if memory else Path(tempfile.gettempdir())
    _remove_abandoned(parent)
    made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of runs that were killed: in memory they would stay until a reboot."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # no signal 0 there; and a disk holds more than memory
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def _tracing() -> Iterator[Callable[[str], object] | None]:
    path = os.environ.get(TRACE_VARIABLE)
    if path is None:
        yield None
        return
    with Path(path).open("a", encoding="utf-8") as file:
        yield lambda line: file.write(line + "\n")
