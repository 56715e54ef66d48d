"""Whatever ended a command, as one line, a next step and an exit code.

| what was raised | exit code |
|---|---|
| an error of sbp2p | its own (sbp2p.errors) |
| a wrong option or argument; a text that is no link, address, CID or peer id | 2 |
| anything else about keys, passphrases, signatures, trust and their files | 9 |
| a peer's bytes that the protocol does not allow | 5 |
| an error of the system about a file | 6 |
| anything else: a bug | 1 |

An exception group counts as its most telling leaf: a bug before an error, an error before the
cancellations that it caused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbp2p.errors import ConfigError, PeerMisbehavedError, Sbp2pError, StoreError, TrustError

if TYPE_CHECKING:
    from collections.abc import Iterator

BUG = 1
_PASSPHRASE = "set SBP2P_PASSPHRASE, or run it on a terminal and type the passphrase"  # noqa: S105

_LINKS = "links look like sbp2p:CID?peer=ADDRESS or sbp2p://PEER/NAME"


@dataclass(frozen=True, slots=True)
class Failure:
    """What the user is told."""

    message: str
    hint: str
    exit_code: int
    is_bug: bool = False


def explain(error: BaseException) -> Failure:
    """Return what to tell the user about `error`."""
    failures = [_explain_leaf(leaf) for leaf in leaves(error)]
    return max(failures, key=lambda failure: failure.is_bug)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield what an exception group holds, however deep, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _explain_leaf(error: BaseException) -> Failure:
    if isinstance(error, Sbp2pError):
        return Failure(str(error), error.hint or _hint(error.__cause__), error.exit_code)
    if isinstance(error, OSError):
        return Failure(_system(error), "", StoreError.exit_code)
    return _explain_lower_layers(error) or Failure(
        f"this is a bug in sbp2p: {type(error).__name__}: {error}{_place(error)}",
        "run it again with --verbose, and report what it prints",
        BUG,
        is_bug=True,
    )


def _explain_lower_layers(error: BaseException) -> Failure | None:
    """Explain errors of the protocol and the keys that no command and no node put into words."""
    from sbp2p_keys import errors as keys
    from sbp2p_protocol.cid import BadCidError
    from sbp2p_protocol.errors import RemoteProtocolError
    from sbp2p_protocol.link import BadLinkError
    from sbp2p_protocol.multiaddr import BadAddressError

    if isinstance(error, BadLinkError):
        return Failure(str(error), _LINKS, ConfigError.exit_code)
    if isinstance(
        error, (BadAddressError, BadCidError, keys.BadPeerIdError, keys.BadEncodingError)
    ):
        return Failure(str(error), "", ConfigError.exit_code)
    if isinstance(error, keys.KeysError):
        return Failure(str(error), _hint(error), TrustError.exit_code)
    if isinstance(error, RemoteProtocolError):
        return Failure(f"a peer broke the protocol: {error}", "", PeerMisbehavedError.exit_code)
    return None


def _hint(error: BaseException | None) -> str:
    """Return the next step for errors of the keys, which know nothing of this command line."""
    from sbp2p_keys.errors import PassphraseRequiredError, PassphraseUnusedError

    if isinstance(error, PassphraseRequiredError):
        return _PASSPHRASE
    if isinstance(error, PassphraseUnusedError):
        return "unset SBP2P_PASSPHRASE, or protect the key with it: `sbp2p id --passphrase`"
    return ""


def _system(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename is not None else reason


def _place(error: BaseException) -> str:
    """Return where a bug was raised, for the report of somebody without a traceback."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f" ({file}:{trace.tb_lineno})"
