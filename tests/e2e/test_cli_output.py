"""What is written: numbers, names, progress, errors. The parts themselves, without processes."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from sbp2p.cli.app import arrange
from sbp2p.cli.bench import percentile
from sbp2p.cli.console import Console, Settings
from sbp2p.cli.failure import explain
from sbp2p.cli.progress import Rate, Reporter, describe
from sbp2p.cli.signals import Interrupts
from sbp2p.cli.text import (
    columns,
    format_bytes,
    format_count,
    format_duration,
    one_line,
    printable,
)
from sbp2p.errors import NotFoundError, PeerUnreachableError, TrustError
from sbp2p.node import Progress
from sbp2p_keys.errors import BadPeerIdError, PassphraseRequiredError, WrongPassphraseError
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError
from sbp2p_protocol.link import BadLinkError
from sbp2p_protocol.multiaddr import BadAddressError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.node.values import Phase


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def console(*, json: bool = False, quiet: bool = False) -> Console:
    return Console(Settings(json=json, quiet=quiet), Interrupts())


def progress(done: int, total: int = 1000, phase: Phase = "network", peers: int = 0) -> Progress:
    return Progress(
        phase=phase,
        done_bytes=done,
        total_bytes=total,
        network_bytes=done if phase == "network" else 0,
        peers=peers,
    )


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_951, "100 kB"),
        (999_949, "1.0 MB"),
        (90_900_000, "90.9 MB"),
        (123_456_789_012, "123 GB"),
        (10**18, "1000 PB"),
    ],
)
def test_bytes_have_decimal_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.004, "0.00 s"),
        (0.346, "0.35 s"),
        (12.34, "12.3 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3600 * 25 + 60, "25 h 01 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_counts_have_plurals() -> None:
    assert format_count(1, "file") == "1 file"
    assert format_count(12345, "block") == "12,345 blocks"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "model-\N{LATIN SMALL LETTER E WITH ACUTE}.bin",
            "model-\N{LATIN SMALL LETTER E WITH ACUTE}.bin",
        ),
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("a\u202egpj.exe", r"a\u202egpj.exe"),
        ("zero\u200bwidth\u2028line\x85", r"zero\u200bwidth\u2028line\x85"),
        ("lone\ud800", r"lone\ud800"),
        ("tab\tnew\n", r"tab\tnew\n"),
    ],
)
def test_what_could_steer_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_whatever_is_shown_is_printable_and_on_one_line(text: str) -> None:
    assert printable(text).isprintable()
    assert one_line(text).isprintable()


def test_columns_are_aligned() -> None:
    rows = [("SIZE", "FILE"), ("1 B", "a"), ("12 B", "bb")]
    assert columns(rows, right=frozenset({0})) == ["SIZE  FILE", " 1 B  a", "12 B  bb"]
    assert columns([]) == []


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "arranged"),
    [
        (["ls"], ["ls"]),
        (["--json", "ls", "-v"], ["ls", "--json", "-v"]),
        (["--home", "h", "-q", "get", "x"], ["get", "--home", "h", "-q", "x"]),
        (["--home=h", "get", "x", "--json"], ["get", "--home=h", "x", "--json"]),
        (["--home"], ["--home"]),
        (["--version"], ["--version"]),
        ([], []),
    ],
)
def test_common_options_move_behind_the_command(given: list[str], arranged: list[str]) -> None:
    assert arrange(given) == arranged


def test_percentiles_are_measured_values() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, p) for p in (50, 90, 99)] == [50, 90, 99]
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7.0


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (NotFoundError("gone", hint="look"), 3, "gone"),
        (BadLinkError("no link"), 2, "no link"),
        (BadAddressError("no address"), 2, "no address"),
        (BadPeerIdError("no id"), 2, "no id"),
        (WrongPassphraseError("wrong"), 9, "wrong"),
        (IntegrityError("bad block"), 5, "a peer broke the protocol: bad block"),
        (PermissionError(13, "Permission denied", "/x"), 6, "/x: Permission denied"),
    ],
)
def test_errors_have_codes(error: BaseException, code: int, message: str) -> None:
    failure = explain(error)
    assert (failure.exit_code, failure.message, failure.is_bug) == (code, message, False)


@pytest.mark.parametrize(
    "error", [KeyError("k"), LocalProtocolError("ours"), trio.ClosedResourceError(), ValueError()]
)
def test_anything_else_is_a_bug_that_says_where(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        fail()
    failure = explain(caught.value)
    assert failure.exit_code == 1
    assert failure.is_bug
    assert failure.message.startswith(f"this is a bug in sbp2p: {type(error).__name__}: ")
    assert "(test_cli_output.py:" in failure.message


def test_groups_count_as_their_most_telling_leaf() -> None:
    expected = PeerUnreachableError("nobody there")
    group = BaseExceptionGroup("outer", [ExceptionGroup("inner", [expected])])
    assert explain(group).message == "nobody there"
    worse = ExceptionGroup("both", [expected, KeyError("k")])
    assert explain(worse).is_bug


def test_a_missing_passphrase_says_how_to_give_it() -> None:
    error = TrustError("key.pem is encrypted")
    error.__cause__ = PassphraseRequiredError("key.pem is encrypted")
    assert "SBP2P_PASSPHRASE" in explain(error).hint


def test_messages_stay_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console(json=True).fail(explain(NotFoundError("a\nb\x1b", hint="c\nd")))
    out, err = capsys.readouterr()
    assert err == "sbp2p: a b\\x1b\n  hint: c d\n"
    event = json.loads(out)
    assert event == {"event": "error", "error": "a\nb\x1b", "hint": "c\nd", "exit_code": 3}


# -- progress --------------------------------------------------------------------------------------


def test_the_rate_is_over_a_few_seconds() -> None:
    rate = Rate()
    assert rate.add(0.0, 0) == 0
    assert rate.add(1.0, 100) == 100
    for second in range(2, 10):
        rate.add(float(second), 100)
    assert rate.add(10.0, 100) == 0, "a stall shows"
    assert rate.add(10.5, 0) == 0, "a counter that starts again is no negative rate"


def test_describe_names_amounts_rate_and_time_left() -> None:
    text = describe(progress(25_000_000, 100_000_000, peers=2), 5e6)
    assert text == "25.0 MB of 100 MB, 25%, 5.0 MB/s, ETA 0:15, 2 peers"
    assert describe(progress(0, 0), 0.0) == "0 B of 0 B"
    assert "ETA 2:46:40" in describe(progress(0, 10**10), 1e6)


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def feed(reporter: Reporter, clock: Clock, steps: Sequence[tuple[float, Progress]]) -> None:
    for at, step in steps:
        clock.now = 100.0 + at
        reporter(step)


def test_events_come_at_most_every_50_ms_and_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Reporter(console(json=True), clock=clock) as reporter:
        feed(reporter, clock, [(n / 100, progress(n)) for n in range(100)])
        feed(reporter, clock, [(0.991, progress(1000)), (0.992, progress(1000))])
    found = events(capsys)
    assert 19 <= len(found) <= 22
    assert found[-1]["done_bytes"] == 1000
    assert set(found[0]) == {
        *("event", "phase", "done_bytes", "total_bytes", "network_bytes", "peers", "rate")
    }


def test_a_new_phase_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Reporter(console(json=True), clock=clock) as reporter:
        feed(reporter, clock, [(0.0, progress(5, phase="local")), (0.001, progress(6))])
    assert [event["phase"] for event in events(capsys)] == ["local", "network"]


def test_lines_come_about_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Reporter(console(), clock=clock) as reporter:
        feed(reporter, clock, [(n / 10, progress(n * 10)) for n in range(31)])
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert 2 <= len(lines) <= 4
    assert lines[0].startswith("network: 50 B of 1.0 kB, 5%, 100 B/s, ETA ")


def test_short_operations_and_quiet_ones_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Reporter(console(), clock=clock) as reporter:
        feed(reporter, clock, [(0.1, progress(500)), (0.3, progress(1000))])
    with Reporter(console(quiet=True), clock=clock) as reporter:
        feed(reporter, clock, [(5.0, progress(500)), (9.0, progress(1000))])
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_is_an_exit_code() -> None:
    interrupts = Interrupts()
    interrupts.signal_number = signal.SIGTERM
    assert interrupts.exit_code == 143
    interrupts.is_expected = True
    assert interrupts.exit_code == 0
