from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.cli.serving import moved
from sbp2p.exchange.ledger import Ledger
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.cid import raw_cid
from tests.runtime.exchange_lab import BLOCK, make_version, open_lab
from tests.runtime.store_samples import noise

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

PEERS = [PrivateKey.from_seed(number.to_bytes(32, "big")).peer_id for number in range(1, 60)]
ROOTS = [raw_cid(number.to_bytes(32, "big")) for number in range(40)]


def test_accounts_by_peer_and_root() -> None:
    ledger = Ledger()
    ledger.sent(PEERS[0], ROOTS[0], 100)
    ledger.sent(PEERS[0], ROOTS[0], 50)
    ledger.sent(PEERS[0], None, 7)
    ledger.received(PEERS[1], ROOTS[0], 30)
    found = {(each.peer_id, each.root): each for each in ledger.traffic()}
    assert len(found) == 3
    first = found[PEERS[0], ROOTS[0]]
    assert (first.bytes_sent, first.blocks_sent) == (150, 2)
    assert (first.bytes_received, first.blocks_received) == (0, 0)
    assert found[PEERS[1], ROOTS[0]].bytes_received == 30
    assert ledger.traffic()[0].peer_id == PEERS[1], "the one that moved last comes first"
    told = moved(ledger.traffic())
    assert told["by_peer"][0] == {
        "peer": str(PEERS[0]),
        "bytes_sent": 157,
        "blocks_sent": 3,
        "bytes_received": 0,
        "blocks_received": 0,
    }
    assert told["by_root"][0]["bytes_received"] == 30


def test_sums_stay_right_when_accounts_are_folded() -> None:
    ledger = Ledger(accounts_max=16)
    for peer in PEERS:
        for root in ROOTS:
            ledger.sent(peer, root, 3)
    traffic = ledger.traffic()
    assert len(traffic) <= 17
    assert sum(each.bytes_sent for each in traffic) == 3 * len(PEERS) * len(ROOTS)
    assert sum(each.blocks_sent for each in traffic) == len(PEERS) * len(ROOTS)
    few = Ledger(accounts_max=16)
    for peer in PEERS:
        few.received(peer, ROOTS[0], 5)
    assert sum(each.bytes_received for each in few.traffic()) == 5 * len(PEERS)
    assert {each.root for each in few.traffic()} == {ROOTS[0]}, "the root is kept while it can be"


async def test_what_two_nodes_count(tmp_path: Path, autojump_clock: MockClock) -> None:
    version = make_version({"w": noise("count", 20 * BLOCK)})
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        await leech.get(version, seed)
        root = version.manifest.root
        sent = {each.root: each for each in seed.exchange.statistics().traffic}
        assert sent[root].peer_id == leech.key.peer_id
        assert (sent[root].bytes_sent, sent[root].blocks_sent) == (20 * BLOCK, 20)
        assert sent[None].blocks_sent >= 1, "tree nodes"
        (got,) = leech.exchange.statistics().traffic
        assert (got.peer_id, got.root) == (seed.key.peer_id, root)
        assert (got.bytes_received, got.blocks_received) == (20 * BLOCK, 20)
        assert got.bytes_sent == 0
