"""What every target expects: the right kind of error, and one outcome however bytes are cut."""

from __future__ import annotations

import hashlib
import re
from random import Random
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from sbp2p_keys.errors import FileError, KeysError, PassphraseError

from .engine import UnexpectedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
P = ParamSpec("P")

MESSAGE_MAX: Final = 2000
"""Characters of an error message: it ends in logs and terminals, and a peer may choose it."""

BYTEWISE_MAX: Final = 512
"""Bytes of a stream that are fed one by one."""

_HARMFUL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""Controls, line breaks, surrogates, bidi marks: what changes a terminal, or how a log reads."""

_ROOTS: Final = (KeysError, FileError, PassphraseError)


class Refused:
    """The parser refused the bytes, in the way it should."""

    __slots__ = ("message",)

    def __init__(self, message: str) -> None:
        self.message = message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Refused) and other.message == self.message

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Refused({self.message!r})"


def attempt(
    error: type[Exception], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | Refused:
    """Return what `call` returns, or Refused if it raises `error`; anything else is a finding."""
    try:
        return call(*args, **kwargs)
    except error as raised:
        return Refused(error_text(raised))


def error_text(error: Exception) -> str:
    """Return the message of a parser's error, which must be one short line of a named kind."""
    if type(error) in _ROOTS:
        raise UnexpectedError(f"{type(error).__name__} is never raised itself") from error
    text = str(error)
    if not text or len(text) > MESSAGE_MAX:
        raise UnexpectedError(f"a message of {len(text)} characters: {text[:200]!r}") from error
    if _HARMFUL.search(text) is not None:
        raise UnexpectedError(f"a message that does not print: {text[:300]!r}") from error
    return f"{type(error).__name__}: {text}"


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """Yield ways to cut a stream: whole, byte by byte, and in pieces that depend on the bytes.

    The middle of a long stream is not cut into single bytes, which would take most of the time.
    """
    yield [data] if data else []
    yield _pieces(data, BYTEWISE_MAX)
    yield _pieces(data, 0)


def _pieces(data: bytes, single: int) -> list[bytes]:
    """Cut `single` bytes one by one, most at the start, and the others at random."""
    rng = Random(hashlib.sha256(data).digest())  # noqa: S311
    pieces, at, last = [], 0, max(0, len(data) - single // 4)
    while at < len(data):
        bytewise = at < single - single // 4 or at >= last
        size = 1 if single and bytewise else 1 + int(256 ** rng.random())
        pieces.append(data[at : at + size])
        at += size
    return pieces


def same_for_all_cuts(run: Callable[[list[bytes]], T], data: bytes) -> T:
    """Run a machine on every cut of a stream; return the outcome, which must be the same."""
    first, *others = (run(pieces) for pieces in cuts(data))
    for other in others:
        expect_equal(other, first, "the outcome depends on how the stream is cut")
    return first


def drained(next_event: Callable[[], T | None]) -> list[T]:
    """Take all events of a machine."""
    events = []
    while (event := next_event()) is not None:
        events.append(event)
    return events


def expect_equal(actual: object, expected: object, what: str) -> None:
    """Raise unless both are equal."""
    if actual != expected:
        raise UnexpectedError(f"{what}: {_shown(actual)} is not {_shown(expected)}")


def expect(condition: bool, what: str) -> None:
    """Raise unless the condition holds."""
    if not condition:
        raise UnexpectedError(what)


def text_of(data: bytes) -> str:
    """Return text for bytes, as the system makes it of arguments: any text, surrogates too."""
    return data.decode("utf-8", "surrogateescape")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:500]}..."
