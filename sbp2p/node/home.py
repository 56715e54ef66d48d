"""A node's home: the directory that holds its key, its trust store and the store's index.

Theory of operation: the key is made at first use and never replaced. One process at a time runs as
that identity, because peers that see two nodes with one peer id cannot tell them apart; whoever
comes second (a `get` beside a running `seed`) works on the same store under a throw-away identity.
The kernel's lock on `node.lock` decides who is first, so a killed process leaves nothing behind.
The trust store is read, changed and written under a lock of its own, so no process undoes what
another one did meanwhile.

Error cases: KeysError leaves become TrustError with the same text; a home that cannot be made or
written is a StoreError.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from platformdirs import user_data_path

from sbp2p.errors import ConfigError, StoreBusyError, TrustError
from sbp2p.store.errors import os_errors
from sbp2p.store.locks import FileLock, NodeLock
from sbp2p_keys.errors import FileExistsAlreadyError, FileMissingError, KeysError
from sbp2p_keys.identity import PrivateKey
from sbp2p_keys.keyfile import load_private_key, save_private_key
from sbp2p_keys.trust import TrustStore, load_trust_store, save_trust_store

if TYPE_CHECKING:
    from collections.abc import Callable

HOME_VARIABLE: Final = "SBP2P_HOME"
KEY_FILE: Final = "identity.pem"
TRUST_FILE: Final = "trust.json"
TRUST_LOCK_FILE: Final = "trust.lock"


def default_home() -> Path:
    """Return $SBP2P_HOME, or this platform's place for a user's data."""
    chosen = os.environ.get(HOME_VARIABLE)
    return Path(chosen) if chosen else user_data_path("sbp2p", appauthor=False)


class Home:
    """The files of one node. Synchronous; nothing here takes longer than reading a small file."""

    def __init__(self, path: Path | str | None = None) -> None:
        if path == "":
            raise ConfigError("the home is an empty text", hint="say . for the working directory")
        self.path = Path(path).expanduser() if path is not None else default_home()

    @property
    def key_path(self) -> Path:
        """Where the identity lies."""
        return self.path / KEY_FILE

    @property
    def trust_path(self) -> Path:
        """Where pins and revocations lie."""
        return self.path / TRUST_FILE

    def create(self) -> None:
        """Make the directory, for its owner only, if it is not there."""
        with os_errors("create", self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def identity(self, passphrase: bytes | None = None) -> PrivateKey:
        """Return the node's key, made now if there is none.

        Raises:
            TrustError: the key file cannot be used; says what is wrong and what to do.
        """
        self.create()
        try:
            return self._load_or_make(passphrase)
        except KeysError as error:
            raise TrustError(str(error)) from error

    def _load_or_make(self, passphrase: bytes | None) -> PrivateKey:
        try:
            return load_private_key(self.key_path, passphrase)
        except FileMissingError:
            # two processes may start on an empty home at once: the first one's key is the node's
            with suppress(FileExistsAlreadyError):
                save_private_key(self.key_path, PrivateKey.generate(), passphrase)
            return load_private_key(self.key_path, passphrase)

    def lock(self) -> NodeLock | None:
        """Return the held lock of the running node, or None if another process has it."""
        lock = NodeLock(self.path)
        try:
            lock.acquire()
        except StoreBusyError:
            return None
        return lock

    def trust(self) -> TrustStore:
        """Return the trust store, empty if there is none yet.

        Raises:
            TrustError: the file cannot be read; it is never replaced by an empty one.
        """
        try:
            return load_trust_store(self.trust_path)
        except FileMissingError:
            return TrustStore()
        except KeysError as error:
            raise TrustError(str(error)) from error

    def update_trust(self, change: Callable[[TrustStore], TrustStore]) -> TrustStore:
        """Replace the trust store by what `change` makes of it; return what it is then.

        No other process changes it meanwhile: this waits for the one that does. What `change`
        raises leaves the store as it was.

        Raises:
            TrustError: the file cannot be read or written, or what it would hold is not allowed.
        """
        self.create()
        lock = FileLock(self.path / TRUST_LOCK_FILE, "the trust store")
        lock.acquire(wait=True)
        try:
            before = self.trust()
            after = change(before)
            if after != before:
                save_trust_store(self.trust_path, after)
            return after
        except ValueError as error:  # KeysError is one
            raise TrustError(str(error)) from error
        finally:
            lock.release()

    def command(self, *words: str) -> str:
        """Return the command line that does something to this home, to be named in a hint."""
        home = () if self.path == default_home() else ("--home", str(self.path))
        return "`" + shlex.join(("sbp2p", *words, *home)) + "`"
