"""Whose fault it is: the three ways a protocol can go wrong."""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    """What to tell the peer when its bytes end a connection (yamux GoAway codes)."""

    NORMAL = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2


class ProtocolError(Exception):
    """Root of everything this package raises; never raised itself."""


class LocalProtocolError(ProtocolError):
    """This side broke the rules: a bug in the caller, not in the peer."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the protocol does not allow.

    Every parser of peer input raises this and nothing else, whatever the bytes.
    """

    def __init__(self, message: str, *, close_code: CloseCode = CloseCode.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.close_code = close_code


class IntegrityError(RemoteProtocolError):
    """A hash or a signature does not match what it is claimed to cover."""
