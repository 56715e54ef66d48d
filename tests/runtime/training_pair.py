"""Two nodes beside two training loops, on loopback."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sbp2p

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sbp2p.training import Background

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
WAIT_S = 60.0
"""Longer than anything here takes; a test that waits so long has failed."""


@contextmanager
def open_pair(home: Path, **options: Any) -> Iterator[tuple[Background, Background]]:
    """Open two that know each other."""
    with sbp2p.background("digits", home=home / "alice", listen=LOOPBACK, **options) as alice:
        peers = alice.addresses
        with sbp2p.background("digits", home=home / "bob", peers=peers, **options) as bob:
            alice.wait_for_peers(1, timeout_s=WAIT_S)
            bob.wait_for_peers(1, timeout_s=WAIT_S)
            yield alice, bob
