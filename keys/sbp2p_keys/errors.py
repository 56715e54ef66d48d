"""What can be wrong with a key, an id, a signature or a file that holds them.

Every error is a KeysError, which is a ValueError: the input was wrong, not this program. Messages
are one line and say what to do next.
"""

from __future__ import annotations

from enum import Enum


class KeysError(ValueError):
    """Root of everything this package raises about its input; never raised itself."""


# -- bytes and text --------------------------------------------------------------------------------


class BadEncodingError(KeysError):
    """A varint, multibase text or multihash is not the one encoding of any value."""


class TruncatedError(BadEncodingError):
    """The bytes end inside a value; more of them might complete it."""


# -- identities ------------------------------------------------------------------------------------


class BadKeyError(KeysError):
    """A key protobuf is not canonical, or its contents are not a key of the named type."""


class UnsupportedKeyTypeError(BadKeyError):
    """The key is of a type that this side cannot use for this purpose."""


class BadPeerIdError(KeysError):
    """Bytes or text are not a peer id."""


# -- signatures ------------------------------------------------------------------------------------


class BadSignatureError(KeysError):
    """A signature does not cover the message with the key it is claimed to be from."""


class BadEnvelopeError(KeysError):
    """Bytes are not a signed envelope."""


class BadDocumentError(KeysError):
    """Bytes are not a signed document in its one encoding, or it is of another domain."""


class MissingSignaturesError(KeysError):
    """Fewer of the allowed keys signed a document than are required."""


class RevokedKeyError(KeysError):
    """A revoked key was to be trusted."""


# -- membership -----------------------------------------------------------------------------------


class BadMembershipError(KeysError):
    """A signed document is no certificate or revocation list in its one encoding."""


class NotAMemberError(KeysError):
    """A certificate does not make this peer a member now; `problem` says why."""

    def __init__(self, problem: MembershipProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class MembershipProblem(Enum):
    """Why a certificate does not count."""

    OTHER_SWARM = "other swarm"
    OTHER_MEMBER = "other member"
    NOT_YET = "not yet valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


# -- files -----------------------------------------------------------------------------------------


class FileError(KeysError):
    """Root of what can be wrong with a file of this layer; never raised itself."""


class FileMissingError(FileError):
    """There is no file at this path."""


class FileExistsAlreadyError(FileError):
    """There is something at this path, and it is not overwritten silently."""


class FileAccessError(FileError):
    """The system refused to read or write the file; the cause is chained."""


class FilePermissionsError(FileError):
    """Other users may read a secret file, or change a trusted one."""


class SymlinkError(FileError):
    """The path is a symbolic link, which another user may be able to point elsewhere."""


class NotAFileError(FileError):
    """The path is a directory, a pipe, a device or a socket."""


class BadKeyFileError(FileError):
    """The file is no PEM private key, or a damaged one."""


class TruncatedKeyFileError(BadKeyFileError):
    """The file ends, or its key ends, before it is complete."""


class ForeignKeyFileError(BadKeyFileError):
    """The file holds a key of a type or in a container that sbp2p does not use."""


class PassphraseError(FileError):
    """Root of what can be wrong with a passphrase; never raised itself."""


class PassphraseRequiredError(PassphraseError):
    """The key file is encrypted and no passphrase was given."""


class WrongPassphraseError(PassphraseError):
    """The passphrase does not open the key file."""


class PassphraseUnusedError(PassphraseError):
    """A passphrase was given for a key file that is not encrypted: it protects nothing."""


class BadSwarmFileError(FileError):
    """The file does not describe a private swarm, or is a damaged one."""


class BadTrustFileError(FileError):
    """The file is no trust store, or a damaged one."""
