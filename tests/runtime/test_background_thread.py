"""A trio program on a thread: results, errors and ends reach who calls from outside."""

from __future__ import annotations

import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import ConfigError
from sbp2p.training.thread import TrioThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WHOLE_S = 10.0
"""Longer than anything here may take."""


class Program:
    """Counts what goes in and out of its block."""

    def __init__(self) -> None:
        self.inside = 0
        self.ended = threading.Event()
        self.crash = trio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Program]:
        self.inside += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.crashing)
                yield self
                nursery.cancel_scope.cancel()
        finally:
            self.inside -= 1
            self.ended.set()

    async def crashing(self) -> None:
        await self.crash.wait()
        raise ConfigError("it crashed", hint="mend it")


async def add(program: Program) -> int:
    await trio.lowlevel.checkpoint()
    return program.inside + 1


async def forever(program: Program) -> None:
    await trio.sleep_forever()


async def fail(program: Program) -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError("of the caller")


async def break_down(program: Program) -> None:
    program.crash.set()
    await trio.sleep_forever()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_calls_return_and_raise_in_the_callers_thread() -> None:
    program = Program()
    thread = TrioThread(program.open, "tested thread")
    assert thread.start() is program
    try:
        assert thread.call(add).result() == 2
        with pytest.raises(ValueError, match="of the caller"):
            thread.call(fail).result()
        call = thread.call(forever)
        assert not call.wait(0)
        assert not call.wait(0.01)
        call.cancel()
        assert call.wait(WHOLE_S)
        assert "tested thread" in threads()
    finally:
        thread.stop()
    assert program.inside == 0
    assert "tested thread" not in threads()


def test_an_end_ends_every_call_and_later_ones() -> None:
    program = Program()
    thread = TrioThread(program.open, "tested thread")
    thread.start()
    waiting = thread.call(forever)
    thread.stop()
    for call in (waiting, thread.call(forever)):
        with pytest.raises(RuntimeError, match="has ended"):
            call.result()
    assert thread.failure is None
    thread.stop()


def test_a_crash_is_raised_with_its_hint_by_calls_under_way_and_after() -> None:
    program = Program()
    thread = TrioThread(program.open, "tested thread")
    thread.start()
    call = thread.call(break_down)
    with pytest.raises(ConfigError) as caught:
        call.result()
    assert caught.value.hint == "mend it"
    assert program.ended.wait(WHOLE_S)
    with pytest.raises(ConfigError):
        thread.call(add).result()
    thread.stop()
    assert thread.failure is caught.value


def test_what_cannot_be_opened_is_raised_by_start() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        raise ConfigError("no such thing")
        yield

    thread = TrioThread(broken, "tested thread")
    with pytest.raises(ConfigError):
        thread.start()
    assert "tested thread" not in threads()


def test_stop_from_another_thread_ends_a_start_that_hangs() -> None:
    @asynccontextmanager
    async def hangs() -> AsyncIterator[None]:
        await trio.sleep_forever()
        yield

    thread = TrioThread(hangs, "tested thread")
    stopper = threading.Timer(0.05, thread.stop)
    stopper.start()
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="has ended"):
        thread.start()
    stopper.join()
    assert time.monotonic() - begun < WHOLE_S
    assert "tested thread" not in threads()
