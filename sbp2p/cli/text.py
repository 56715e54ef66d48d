"""Numbers, names and tables as people read them.

Units are decimal everywhere (1 MB is 1,000,000 bytes), as disks and networks are sold. Names and
paths that come from a peer pass through `printable` before they reach a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

LINES_SHOWN: Final = 40
"""Entries of a list of files that are shown unasked: a screen, and not a thousand lines."""
FACTS_SHOWN: Final = 10
"""Entries of a list beside others, such as parents and notes."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def printable(text: str) -> str:
    """Return `text` with everything that could steer a terminal or reorder a line escaped.

    Control characters, bidirectional overrides, other invisible characters, line separators and
    lone surrogates become backslash escapes.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def one_line(text: str) -> str:
    """Return `text` printable and on one line."""
    return printable(" ".join(text.split()))


def format_bytes(count: float) -> str:
    """Return a number of bytes with a decimal unit: `999 B`, `1.2 kB`, `90.9 MB`, `120 GB`."""
    value = float(count)
    for unit in _UNITS:
        # 999.5 of its unit would be shown as 1000
        if value < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    if unit == "B":
        return f"{value:.0f} B"
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def format_rate(bytes_per_s: float) -> str:
    """Return a rate with a decimal unit: `120 MB/s`."""
    return f"{format_bytes(bytes_per_s)}/s"


def format_duration(seconds: float) -> str:
    """Return a time span with two significant parts: `0.35 s`, `12.3 s`, `3 min 05 s`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_count(count: int, what: str) -> str:
    """Return a number with its noun: `1 file`, `12,345 blocks`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def first(
    items: Sequence[T], most: int, what: str, *, everything: bool
) -> tuple[Sequence[T], list[str]]:
    """Return the items to show and, in at most one line, how many there are besides.

    Args:
        items: what could be shown.
        most: how many are, unless `everything` is.
        what: one of them, as in `format_count`.
        everything: show all of them; what --verbose asks for.
    """
    left = len(items) - most
    if everything or left <= 0:
        return items, []
    return items[:most], [f"... and {left:,} more {what}{'' if left == 1 else 's'}: see --verbose"]


def columns(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Lay rows of cells out as aligned lines, two spaces apart.

    Args:
        rows: cells, the same number in each row; the first row may be a heading.
        right: numbers of the columns that are aligned to the right.
    """
    if not rows:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
