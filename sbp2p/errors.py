"""The errors that the public API raises, each with the exit code that the CLI ends with.

A message says whose fault it is, what happened, and (in `hint`) what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class Sbp2pError(Exception):
    """Root of every error that sbp2p raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(Sbp2pError):
    """A setting, an address or a link that cannot mean anything."""

    exit_code = 2


class NotFoundError(Sbp2pError):
    """No such version, file or tensor, here or at any peer that was asked."""

    exit_code = 3


class PeerUnreachableError(Sbp2pError):
    """No connection could be made, or every peer that had the data went away."""

    exit_code = 4


class PeerMisbehavedError(Sbp2pError):
    """A peer broke the protocol or sent bytes that do not match their hash."""

    exit_code = 5


class StoreError(Sbp2pError):
    """The disk or the store's index failed: full, read-only, damaged, unreadable."""

    exit_code = 6


class StoreBusyError(StoreError):
    """Another process holds this store or this download."""

    exit_code = 7


class CheckpointError(Sbp2pError):
    """The files given to publish, or found in a version, cannot be used as asked."""

    exit_code = 8


class TrustError(Sbp2pError):
    """A key, a signature or a publisher that must not be relied on."""

    exit_code = 9


class MergeError(Sbp2pError):
    """Models that cannot be merged as asked: names, shapes, dtypes, or too few sound ones left."""

    exit_code = 11
