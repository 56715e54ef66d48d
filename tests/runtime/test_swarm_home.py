from __future__ import annotations

import stat
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sbp2p.config import NodeConfig
from sbp2p.errors import ConfigError, TrustError
from sbp2p.node.environment import Environment
from sbp2p.node.home import Home
from sbp2p.node.private_swarm import open_private
from sbp2p.node.swarm_home import SwarmHome
from sbp2p_keys.identity import PrivateKey
from sbp2p_keys.membership import Capability, network_id
from sbp2p_keys.swarm_file import load_swarm_file, save_swarm_file

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p_keys.swarm_file import SwarmFile

ME, FRIEND = (PrivateKey.from_seed(bytes([60 + number]) * 32) for number in range(2))
NOW = 1_800_000_000.0
LATER = int(NOW) + 1000


@pytest.fixture
def owner(tmp_path: Path) -> SwarmHome:
    home = SwarmHome(Home(tmp_path / "owner"))
    home.create(ME.peer_id, None, now=NOW, expires=LATER)
    return home


def invite(owner: SwarmHome, path: Path, **options: int) -> SwarmFile:
    swarm = owner.invite(FRIEND.peer_id, None, now=NOW, expires=options.get("expires", LATER))
    save_swarm_file(path, swarm)
    return swarm


def environment(now: float = NOW) -> Environment:
    return Environment(wall_clock=lambda: now)


def test_created_once(owner: SwarmHome, tmp_path: Path) -> None:
    mine = owner.member()
    assert mine is not None
    assert mine.read_certificate().member == ME.peer_id
    assert mine.owner != ME.peer_id, "the owner's key signs, and is nobody's id"
    for path in set(owner.folder.iterdir()) - {owner.folder / "lock"}:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    with pytest.raises(ConfigError, match="already"):
        owner.create(ME.peer_id, None, now=NOW, expires=LATER)
    with pytest.raises(ConfigError, match="owns the swarm"):
        owner.leave()


def test_serials_are_never_used_twice(owner: SwarmHome, tmp_path: Path) -> None:
    first = invite(owner, tmp_path / "1")
    owner.revoke(FRIEND.peer_id, None)
    second = invite(owner, tmp_path / "2")
    assert second.read_certificate().serial > first.read_certificate().serial
    revoked = second.read_revocations().members[FRIEND.peer_id]
    assert first.read_certificate().serial <= revoked < second.read_certificate().serial
    assert [each.peer for each in owner.invited()] == [ME.peer_id, FRIEND.peer_id]
    with pytest.raises(ConfigError, match="own node"):
        owner.revoke(ME.peer_id, None)


def test_joining_and_leaving(owner: SwarmHome, tmp_path: Path) -> None:
    file = tmp_path / "friend.swarm"
    invite(owner, file)
    home = SwarmHome(Home(tmp_path / "friend"))
    assert home.member() is None
    with pytest.raises(TrustError, match="this invitation is for"):
        home.join(file, ME.peer_id)
    joined = home.join(file, FRIEND.peer_id)
    assert home.member() == joined
    with pytest.raises(ConfigError, match="owns no private swarm"):
        home.invite(ME.peer_id, None, now=NOW, expires=LATER)
    other = SwarmHome(Home(tmp_path / "other"))
    other.create(ME.peer_id, None, now=NOW, expires=LATER)
    invite(other, tmp_path / "other.swarm")
    with pytest.raises(ConfigError, match="another private swarm"):
        home.join(tmp_path / "other.swarm", FRIEND.peer_id)
    home.leave()
    assert home.member() is None
    home.join(tmp_path / "other.swarm", FRIEND.peer_id)


def test_an_older_invitation_brings_no_older_list(owner: SwarmHome, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    invite(owner, old)
    owner.revoke(PrivateKey.generate().peer_id, None)
    invite(owner, new)
    home = SwarmHome(Home(tmp_path / "friend"))
    home.join(new, FRIEND.peer_id)
    home.join(old, FRIEND.peer_id)
    kept = home.member()
    assert kept is not None
    assert kept.read_revocations().number == 1
    home.keep_revocations(home.member_path, b"")
    assert home.member() == kept, "an older list is left alone"


def test_what_a_node_is_opened_with(owner: SwarmHome, tmp_path: Path) -> None:
    home = Home(tmp_path / "friend")
    home.create()
    config = NodeConfig()
    assert open_private(home, None, FRIEND, FRIEND, config, environment()) is None
    file = tmp_path / "friend.swarm"
    swarm = replace(invite(owner, file), peers=("/ip4/127.0.0.1/tcp/1",))
    save_swarm_file(file, swarm)
    SwarmHome(home).join(file, FRIEND.peer_id)
    private = open_private(home, None, FRIEND, FRIEND, config, environment())
    assert private is not None
    network = network_id(swarm.owner)
    assert private.config.dht.network == private.membership.network_id == network
    assert private.config.discovery.lan_network
    assert private.config.discovery.bootstrap == swarm.peers
    assert swarm.secret in private.config.connection.prologue
    assert swarm.secret.hex() not in repr(private.config)
    assert private.memory.is_dir()
    assert private.memory != home.path
    for now, why in ((NOW - 1000, "yet"), (LATER, "expired")):
        with pytest.raises(TrustError, match=why):
            open_private(home, None, FRIEND, FRIEND, config, environment(now))
    with pytest.raises(TrustError, match="this invitation is for"):
        open_private(home, file, ME, ME, config, environment())
    with pytest.raises(TrustError, match="nothing"):
        open_private(home, tmp_path / "nothing", FRIEND, FRIEND, config, environment())


def test_damaged_files(owner: SwarmHome, tmp_path: Path) -> None:
    (owner.folder / "members.json").write_text("{}")
    with pytest.raises(TrustError, match="damaged"):
        owner.invited()
    owner.member_path.write_text("{}")
    with pytest.raises(TrustError, match="not a swarm file"):
        owner.member()


def test_only_what_was_said(owner: SwarmHome, tmp_path: Path) -> None:
    swarm = owner.invite(FRIEND.peer_id, None, now=NOW, expires=LATER, capabilities=Capability.SEND)
    assert swarm.read_certificate().capabilities == Capability.SEND
    with pytest.raises(ConfigError, match="before it begins"):
        owner.invite(FRIEND.peer_id, None, now=NOW, expires=int(NOW) - 10_000)
    path = tmp_path / "mine"
    save_swarm_file(path, swarm)
    assert load_swarm_file(path) == swarm
