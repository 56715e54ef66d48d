"""A home's private swarm: the file of its own membership, and what the owner of one keeps.

    HOME/swarm/member.swarm     this node's swarm file; there is none in the public network
    HOME/swarm/owner.pem        the owner's key, where the swarm was created
    HOME/swarm/members.json     whom the owner invited: peer id, serial, expiry

Theory of operation: what is here is read, changed and written under one lock, so that no process
undoes what another one did. The owner's key signs and does nothing else: the owner's node is a
member like all others, under its own key. Serials are never used twice, also not after a
revocation.

Error cases: TrustError for files that cannot be used, and for what they do not allow; ConfigError
for what cannot be asked of this home.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sbp2p.errors import ConfigError, TrustError
from sbp2p.store.errors import os_errors
from sbp2p.store.locks import FileLock
from sbp2p_keys.errors import FileMissingError, KeysError
from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_keys.keyfile import load_private_key, save_private_key
from sbp2p_keys.membership import EVERYTHING, Capability, Certificate
from sbp2p_keys.swarm_file import SECRET_BYTES, SwarmFile, load_swarm_file, save_swarm_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .home import Home

FOLDER: Final = "swarm"
MEMBER_FILE: Final = "member.swarm"
OWNER_KEY: Final = "owner.pem"
LEDGER: Final = "members.json"
_FORMAT: Final = "sbp2p-swarm-members/1"
BACKDATED_S: Final = 300
"""A certificate holds from a little before it was made: clocks differ."""


@dataclass(frozen=True, slots=True)
class Invited:
    """One line of the owner's ledger: the last certificate of a peer."""

    peer: PeerId
    serial: int
    expires: int
    """Seconds since 1970."""
    capabilities: Capability


class SwarmHome:
    """The private swarm of one home. Synchronous."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.folder = home.path / FOLDER

    @property
    def member_path(self) -> Path:
        """Where this node's swarm file lies, if it has one."""
        return self.folder / MEMBER_FILE

    @property
    def is_owner(self) -> bool:
        """Whether the swarm was created here."""
        return (self.folder / OWNER_KEY).exists()

    def member(self) -> SwarmFile | None:
        """Return this node's swarm file, or None in the public network; raises TrustError."""
        try:
            return load_swarm_file(self.member_path)
        except FileMissingError:
            return None
        except KeysError as error:
            raise TrustError(str(error)) from error

    # -- members -----------------------------------------------------------------------------------

    def join(self, path: Path, me: PeerId) -> SwarmFile:
        """Be a member by the file of an invitation; returns it.

        Raises:
            ConfigError: this home is in another swarm already.
            TrustError: the file cannot be used, or is for another node.
        """
        try:
            swarm = load_swarm_file(path)
        except KeysError as error:
            raise TrustError(str(error)) from error
        check_own(swarm, me)
        with self._changing():
            before = self.member()
            if before is not None and before.owner != swarm.owner:
                raise ConfigError(
                    f"this node belongs to another private swarm, that of {before.owner}",
                    hint=f"{self._home.command('swarm', 'leave')} leaves it",
                )
            if before is not None and _number(before) > _number(swarm):
                swarm = replace(swarm, revocations=before.revocations)
            self._save(swarm)
        return swarm

    def leave(self) -> SwarmFile:
        """Go back to the public network; returns what was left; raises ConfigError, TrustError."""
        with self._changing():
            before = self.member()
            if before is None:
                raise ConfigError("this node belongs to no private swarm")
            if self.is_owner:
                raise ConfigError(
                    "this home owns the swarm, and nobody else could invite or revoke",
                    hint=f"to give it up, move {self.folder} away",
                )
            with os_errors("remove", self.member_path):
                self.member_path.unlink()
        return before

    # -- the owner ---------------------------------------------------------------------------------

    def create(
        self, me: PeerId, passphrase: bytes | None, *, now: float, expires: int
    ) -> SwarmFile:
        """Create a swarm that this home owns, with this node as its first member.

        Raises:
            ConfigError: it belongs to one already.
            TrustError: the files cannot be written.
        """
        with self._changing():
            if self.is_owner or self.member() is not None:
                raise ConfigError(
                    "this node belongs to a private swarm already",
                    hint=f"{self._home.command('swarm', 'show')} tells which",
                )
            key = PrivateKey.generate()
            try:
                save_private_key(self.folder / OWNER_KEY, key, passphrase)
            except KeysError as error:
                raise TrustError(str(error)) from error
            self._write_ledger([])
            swarm = SwarmFile(
                key.peer_id,
                os.urandom(SECRET_BYTES),
                self._certify(key, me, now=now, expires=expires, capabilities=EVERYTHING),
            )
            self._save(swarm)
        return swarm

    def invite(
        self,
        peer: PeerId,
        passphrase: bytes | None,
        *,
        now: float,
        expires: int,
        capabilities: Capability = EVERYTHING,
        peers: Sequence[str] = (),
    ) -> SwarmFile:
        """Return what makes a peer a member; an earlier invitation of it holds, too.

        Raises:
            ConfigError: this home owns no swarm.
            TrustError: the files cannot be used.
        """
        with self._changing():
            mine, key = self._owned(passphrase)
            certificate = self._certify(
                key, peer, now=now, expires=expires, capabilities=capabilities
            )
            swarm = replace(mine, certificate=certificate, peers=tuple(peers))
            if peer == mine.read_certificate().member:
                self._save(swarm)
        return swarm

    def revoke(self, peer: PeerId, passphrase: bytes | None) -> SwarmFile:
        """Revoke every certificate of a peer so far; returns this node's file with the new list.

        Raises:
            ConfigError: this home owns no swarm, or the peer is this node itself.
            TrustError: the files cannot be used.
        """
        with self._changing():
            mine, key = self._owned(passphrase)
            if peer == mine.read_certificate().member:
                raise ConfigError("this is the owner's own node: who would tell the others?")
            serial = max((each.serial for each in self.invited()), default=1)
            revoked = mine.read_revocations().revoke(peer, serial)
            swarm = replace(mine, revocations=revoked.sign(key))
            self._save(swarm)
        return swarm

    def invited(self) -> list[Invited]:
        """Return whom the owner invited, the latest last; raises TrustError."""
        path = self.folder / LEDGER
        try:
            value = json.loads(path.read_bytes())
            if value["format"] != _FORMAT:
                raise TrustError(f"{path}: format is not {_FORMAT!r}")
            return [_read_invited(each) for each in value["members"]]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TrustError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise TrustError(
                f"{path} is damaged: {error!s:.200}", hint="restore it from a backup"
            ) from error

    # -- files -------------------------------------------------------------------------------------

    def keep_revocations(self, path: Path, document: bytes) -> None:
        """Write a newer list into a swarm file; an older one is left alone; raises TrustError."""
        with self._changing():
            try:
                before = load_swarm_file(path)
                after = replace(before, revocations=document)
                if _number(after) > _number(before):
                    save_swarm_file(path, after)
            except KeysError as error:
                raise TrustError(str(error)) from error

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._home.create()
        with os_errors("create", self.folder):
            self.folder.mkdir(mode=0o700, exist_ok=True)
        lock = FileLock(self.folder / "lock", "the private swarm")
        lock.acquire(wait=True)
        try:
            yield
        finally:
            lock.release()

    def _owned(self, passphrase: bytes | None) -> tuple[SwarmFile, PrivateKey]:
        mine = self.member()
        if mine is None or not self.is_owner:
            raise ConfigError(
                "this home owns no private swarm",
                hint=f"{self._home.command('swarm', 'create')} creates one",
            )
        try:
            key = load_private_key(self.folder / OWNER_KEY, passphrase)
        except KeysError as error:
            raise TrustError(str(error)) from error
        if key.peer_id != mine.owner:
            raise TrustError(f"{self.folder / OWNER_KEY} is not the key of the swarm in there")
        return mine, key

    def _certify(
        self, key: PrivateKey, peer: PeerId, *, now: float, expires: int, capabilities: Capability
    ) -> bytes:
        invited = self.invited()
        serial = max((each.serial for each in invited), default=0) + 1
        begins = max(0, int(now) - BACKDATED_S)
        try:
            certificate = Certificate(key.peer_id, peer, begins, expires, serial, capabilities)
        except KeysError as error:
            raise ConfigError(f"no such membership: {error}") from error
        others = [each for each in invited if each.peer != peer]
        self._write_ledger([*others, Invited(peer, serial, expires, capabilities)])
        return certificate.sign(key)

    def _write_ledger(self, members: Sequence[Invited]) -> None:
        value = {
            "format": _FORMAT,
            "members": [
                {
                    "peer": str(each.peer),
                    "serial": each.serial,
                    "expires": each.expires,
                    "capabilities": int(each.capabilities),
                }
                for each in members
            ],
        }
        path = self.folder / LEDGER
        new = path.with_suffix(".new")
        with os_errors("write", path):
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(value, indent=2).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)

    def _save(self, swarm: SwarmFile) -> None:
        try:
            save_swarm_file(self.member_path, swarm)
        except KeysError as error:
            raise TrustError(str(error)) from error


def check_own(swarm: SwarmFile, me: PeerId) -> None:
    """Return if a swarm file is for this node; raises TrustError."""
    member = swarm.read_certificate().member
    if member != me:
        raise TrustError(
            f"this invitation is for {member}, and this node is {me}",
            hint="tell the owner who `sbp2p id` says that you are",
        )


def _number(swarm: SwarmFile) -> int:
    return swarm.read_revocations().number


def _read_invited(value: dict[str, Any]) -> Invited:
    return Invited(
        PeerId.parse(value["peer"]),
        int(value["serial"]),
        int(value["expires"]),
        Capability(int(value["capabilities"])),
    )
