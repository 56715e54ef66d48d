"""Messages that are lists: a kind, then fields, as the exchange and namespaces send them.

Theory of operation: a frame holds one dag-cbor list. Its first item is the kind; kinds that are odd
may be ignored by who does not know them, even ones may not. Fields beyond those that a reader knows
are ignored, so that later versions can add some.

Errors: RemoteProtocolError for whatever is not as it must be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from . import dag_cbor
from .errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import IntEnum

    from .dag_cbor import CborValue

NUMBER_MAX: Final = 2**63 - 1
"""The largest number in a message: what fits 63 bits."""

M = TypeVar("M")


def read_message(
    frame: bytes,
    readers: Mapping[int, tuple[int, Callable[[list[CborValue]], M]]],
    kinds: type[IntEnum],
    *,
    max_size: int,
    what: str,
) -> M | None:
    """Read one frame's body; None means a message this side does not know and may ignore.

    Args:
        frame: the body.
        readers: by kind, how many fields it must have and the function that reads them.
        kinds: the kinds, for their names.
        max_size: bytes of a frame.
        what: whose messages these are, for errors.

    Raises:
        RemoteProtocolError: malformed, out of bounds, or an unknown kind that must be understood.
    """
    value = dag_cbor.decode(frame, max_size=max_size)
    if not isinstance(value, list) or not value:
        raise RemoteProtocolError(f"a message of {what} is a non-empty list")
    kind = integer(value[0], NUMBER_MAX)
    entry = readers.get(kind)
    if entry is None:
        if kind & 1:
            return None
        raise RemoteProtocolError(f"unknown message {kind} of {what} that must be understood")
    count, read = entry
    if len(value) <= count:
        raise RemoteProtocolError(
            f"{kinds(kind).name} with {len(value) - 1} fields, {count} needed"
        )
    return read(value)


def integer(value: object, highest: int, lowest: int = 0) -> int:
    """Return an integer within bounds."""
    if type(value) is not int or not lowest <= value <= highest:
        raise RemoteProtocolError(f"not an integer from {lowest} to {highest}")
    return value


def blob(value: object, most: int, least: int = 0) -> bytes:
    """Return bytes of a length within bounds."""
    if type(value) is not bytes or not least <= len(value) <= most:
        raise RemoteProtocolError(f"not {least} to {most} bytes")
    return value


def text(value: object, most: int, least: int = 0) -> str:
    """Return text whose UTF-8 has a length within bounds."""
    if type(value) is not str or not least <= len(value.encode()) <= most:
        raise RemoteProtocolError(f"not text of {least} to {most} bytes")
    return value


def sequence(value: object, most: int, least: int = 0) -> list[CborValue]:
    """Return a list with a number of items within bounds."""
    if type(value) is not list or not least <= len(value) <= most:
        raise RemoteProtocolError(f"not a list of {least} to {most} items")
    return value
