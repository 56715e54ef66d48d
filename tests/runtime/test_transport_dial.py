from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.config import TransportConfig
from sbp2p.transport import DialError, MemoryNetwork, dial
from sbp2p.transport.dial import alternate_families, race
from sbp2p_protocol.multiaddr import parse_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

ADDRESS = parse_address("/memory/1")


class Attempts:
    """Attempts that take a given time and then succeed or fail; records what became of them."""

    def __init__(self) -> None:
        self.started: list[tuple[str, float]] = []
        self.cancelled: list[str] = []
        self.discarded: list[str] = []
        self._begin = trio.current_time()

    def make(self, name: str, seconds: float, fail: bool = False) -> Callable[[], Awaitable[str]]:
        async def attempt() -> str:
            self.started.append((name, trio.current_time() - self._begin))
            try:
                await trio.sleep(seconds)
            except trio.Cancelled:
                self.cancelled.append(name)
                raise
            if fail:
                raise DialError.at(ADDRESS, f"{name} failed")
            return name

        return attempt


async def test_the_first_wins_alone_when_it_is_quick(
    autojump_clock: MockClock,
) -> None:
    attempts = Attempts()
    runs = [attempts.make("a", 0.1), attempts.make("b", 0.1)]
    assert await race(runs, delay_s=0.25, discard=attempts.discarded.append) == "a"
    assert attempts.started == [("a", 0.0)]


async def test_a_slow_first_gives_way_and_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    attempts = Attempts()
    runs = [attempts.make("a", 60.0), attempts.make("b", 60.0), attempts.make("c", 0.1)]
    assert await race(runs, delay_s=0.25, discard=attempts.discarded.append) == "c"
    assert attempts.started == [("a", 0.0), ("b", 0.25), ("c", 0.5)]
    assert sorted(attempts.cancelled) == ["a", "b"]


async def test_a_failure_starts_the_next_at_once(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    runs = [attempts.make("a", 0.01, fail=True), attempts.make("b", 0.1)]
    assert await race(runs, delay_s=0.25, discard=attempts.discarded.append) == "b"
    assert attempts.started == [("a", 0.0), ("b", 0.01)]


async def test_all_failing_gives_every_reason(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    runs = [attempts.make(name, 0.5, fail=True) for name in "abc"]
    with pytest.raises(DialError) as caught:
        await race(runs, delay_s=0.25, discard=attempts.discarded.append)
    assert {failure.reason for failure in caught.value.failures} == {
        "a failed",
        "b failed",
        "c failed",
    }


async def test_two_results_at_once_leave_one(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    runs = [attempts.make("a", 1.0), attempts.make("b", 0.75)]
    winner = await race(runs, delay_s=0.25, discard=attempts.discarded.append)
    # whichever lost was either cancelled or thrown away, never kept
    assert [winner, *attempts.discarded, *attempts.cancelled] in (
        ["a", "b"],
        ["b", "a"],
    )


async def test_nothing_to_try_is_an_error() -> None:
    with pytest.raises(DialError):
        await race([], delay_s=0.25, discard=lambda _: None)


async def test_a_cancelled_race_keeps_nothing(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    with trio.move_on_after(0.3):
        runs = [attempts.make("a", 60.0), attempts.make("b", 60.0)]
        await race(runs, delay_s=0.25, discard=attempts.discarded.append)
    assert sorted(attempts.cancelled) == ["a", "b"]


def test_families_take_turns() -> None:
    texts = ["/ip6/::1/tcp/1", "/ip6/::1/tcp/2", "/ip4/127.0.0.1/tcp/1", "/memory/3"]
    ordered = alternate_families([parse_address(text) for text in texts])
    assert [address.text for address in ordered] == [texts[0], texts[2], texts[3], texts[1]]


async def test_dial_reports_each_address() -> None:
    network = MemoryNetwork()
    addresses = [parse_address(text) for text in ("/memory/5", "/ip4/127.0.0.1/tcp/9")]
    with pytest.raises(DialError) as caught:
        await dial(addresses, [network], TransportConfig())
    reasons = {failure.address.text: failure.reason for failure in caught.value.failures}
    assert reasons["/memory/5"] == "connection refused"
    assert "no transport" in reasons["/ip4/127.0.0.1/tcp/9"]


async def test_dial_finds_the_one_that_listens() -> None:
    network = MemoryNetwork()
    listener = await network.listen(parse_address("/memory/6"))
    raw = await dial(
        [parse_address("/memory/5"), parse_address("/memory/6")], [network], TransportConfig()
    )
    assert raw.remote_address == listener.addresses[0]
