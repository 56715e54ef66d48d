"""Whole nodes in a private swarm: they find each other in a network of their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio

import sbp2p
from sbp2p.node import Node
from sbp2p.node.environment import Environment
from sbp2p.node.home import Home
from sbp2p.node.swarm_home import SwarmHome
from sbp2p_keys.membership import network_id
from sbp2p_keys.swarm_file import save_swarm_file

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


async def test_a_model_is_found_by_its_name_among_members(tmp_path: Path) -> None:
    """The invitation names one member; the rest is the swarm's own DHT."""
    home, guest = Home(tmp_path / "owner"), Home(tmp_path / "member")
    owner_id, member_id = home.identity().peer_id, guest.identity().peer_id
    now = Environment().wall_clock()
    until = int(now) + 3600
    SwarmHome(home).create(owner_id, None, now=now, expires=until)
    (tmp_path / "w.bin").write_bytes(os.urandom(100_000))
    with trio.fail_after(60):
        async with Node(home=tmp_path / "owner", listen=LOOPBACK) as owner:
            await owner.publish(tmp_path / "w.bin", name="w")
            address = str(owner.addresses[0])
            invitation = SwarmHome(home).invite(
                member_id, None, now=now, expires=until, peers=[address]
            )
            file = tmp_path / "member.swarm"
            save_swarm_file(file, invitation)
            async with Node(home=guest.path, listen=LOOPBACK, swarm_file=file) as member:
                result = await member.fetch(
                    f"sbp2p://{owner_id}/w", to=tmp_path / "out", trust=sbp2p.accept_new
                )
                assert result.network_bytes >= 100_000
                told = member.swarm.identified(owner_id)
                assert told is not None
                tables = [each for each in told.protocols if each.endswith("/kad/1.0.0")]
                network = network_id(invitation.owner)
                assert all(each.startswith(network) for each in tables)
            async with Node(home=tmp_path / "stranger") as stranger:
                with pytest.raises(sbp2p.PeerUnreachableError, match="does not decrypt"):
                    await stranger.connect(address)
