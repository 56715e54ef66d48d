"""What is different about a node in a private swarm.

Theory of operation: its swarm file says who may connect (`Membership`), from what its handshakes
begin, and in which network it announces and looks for peers; whom it meets there is remembered
apart from whom it meets elsewhere. A process beside the one that runs as the home's identity runs
under a key of its own, to which the member lends its membership.

Error cases: TrustError for a file that cannot be used, or a membership that does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sbp2p.errors import TrustError
from sbp2p.membership import Membership, prologue_of
from sbp2p.store.errors import os_errors
from sbp2p_keys.errors import FileMissingError, KeysError, NotAMemberError
from sbp2p_keys.membership import DELEGATE_DOMAIN, Certificate, check_member
from sbp2p_keys.swarm_file import SwarmFile, load_swarm_file

from .swarm_home import BACKDATED_S, SwarmHome, check_own

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p.config import NodeConfig
    from sbp2p_keys.identity import PrivateKey

    from .environment import Environment
    from .home import Home

MEMORY_FOLDER: Final = "private"
_LENT_S: Final = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class PrivateSwarm:
    """What a node is opened with."""

    membership: Membership
    config: NodeConfig
    memory: Path
    """The folder of what is remembered of this swarm."""


def open_private(
    home: Home,
    path: Path | None,
    signer: PrivateKey,
    identity: PrivateKey,
    config: NodeConfig,
    environment: Environment,
) -> PrivateSwarm | None:
    """Return the private swarm of a home, or of the file at `path`; None in the public network.

    Raises:
        TrustError: the file cannot be used, or does not make this node a member now.
    """
    swarm_home = SwarmHome(home)
    path = path or swarm_home.member_path
    try:
        swarm = load_swarm_file(path)
    except FileMissingError as error:
        if path == swarm_home.member_path:
            return None
        raise TrustError(str(error)) from error
    except KeysError as error:
        raise TrustError(str(error)) from error
    now = environment.wall_clock()
    check_own(swarm, signer.peer_id)
    _check_now(swarm, now)
    delegate = b""
    if identity is not signer:
        lent = Certificate(
            signer.peer_id, identity.peer_id, int(now) - BACKDATED_S, int(now) + _LENT_S, 1
        )
        delegate = lent.sign(signer, DELEGATE_DOMAIN)
    membership = Membership(
        swarm,
        delegate=delegate,
        wall_clock=environment.wall_clock,
        keeper=_FileKeeper(swarm_home, path, environment),
    )
    memory = home.path / MEMORY_FOLDER / membership.network_id.strip("/")
    with os_errors("create", memory):
        memory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return PrivateSwarm(membership, _configured(config, swarm, membership.network_id), memory)


def _check_now(swarm: SwarmFile, now: float) -> None:
    certificate = swarm.read_certificate()
    try:
        check_member(certificate.member, certificate, None, swarm.read_revocations(), now)
    except NotAMemberError as error:
        raise TrustError(
            f"this node is not in its private swarm: {error}",
            hint="ask the owner of the swarm for a new invitation, and `sbp2p swarm join` it",
        ) from error


def _configured(config: NodeConfig, swarm: SwarmFile, network: str) -> NodeConfig:
    discovery = config.discovery
    return replace(
        config,
        connection=replace(config.connection, prologue=prologue_of(swarm)),
        dht=replace(config.dht, network=network),
        discovery=replace(
            discovery,
            lan_network=network.strip("/"),
            bootstrap=tuple(dict.fromkeys([*swarm.peers, *discovery.bootstrap])),
        ),
    )


class _FileKeeper:
    """The swarm file on disk, as `sbp2p.membership.SwarmFileKeeper`."""

    def __init__(self, home: SwarmHome, path: Path, environment: Environment) -> None:
        self._home = home
        self._path = path
        self._calls = environment.calls
        self._stamp = _stamp(path)

    async def read(self) -> SwarmFile | None:
        """Return the file if it has changed; raises TrustError."""
        return await self._calls.run_to_end(self._read)

    async def write_revocations(self, document: bytes) -> None:
        """Keep a newer list in the file; raises TrustError."""
        await self._calls.run_to_end(self._home.keep_revocations, self._path, document)

    def _read(self) -> SwarmFile | None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return None
        try:
            swarm = load_swarm_file(self._path)
        except KeysError as error:
            raise TrustError(str(error)) from error
        self._stamp = stamp
        return swarm


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
