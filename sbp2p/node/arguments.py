"""What users give to a node, read; and what is said when they cannot mean it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p.errors import ConfigError
from sbp2p_protocol.multiaddr import BadAddressError, parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p_protocol.multiaddr import Address


def texts(given: Sequence[str]) -> tuple[str, ...]:
    """Return several texts; one alone is meant as that one, not as its letters."""
    return (given,) if isinstance(given, str) else tuple(given)


def not_open() -> RuntimeError:
    """Return what to raise when a node is used outside of its block."""
    return RuntimeError("the node is not open: use it inside `async with sbp2p.Node(...) as node:`")


def require_trio() -> None:
    """Raise RuntimeError where trio is not running."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise RuntimeError(
            "sbp2p runs on trio, and this is not a trio task: start it with trio.run(main)"
        ) from None


def read_address(text: str) -> Address:
    """Read an address that a user gave; raises ConfigError."""
    try:
        return parse_address(text)
    except BadAddressError as error:
        raise ConfigError(
            f"{text!r} is not an address: {error}",
            hint="addresses look like /ip4/127.0.0.1/tcp/4801/p2p/12D3KooW...",
        ) from error
