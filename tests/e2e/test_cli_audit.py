"""`sbp2p audit`: the record of a round, shown and merged again from a node's home."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
import trio

import sbp2p
from sbp2p.config import DiscoveryConfig, NodeConfig
from sbp2p.namespace.audit import read_record
from tests.e2e.cli_process import Cli

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p.namespace import Namespace, RoundResult

pytestmark = pytest.mark.e2e

LISTEN = ["/ip4/127.0.0.1/tcp/0"]
CONFIG = NodeConfig(discovery=DiscoveryConfig(lan=False))


def model(seed: int) -> dict[str, torch.Tensor]:
    return {"layer": torch.randn(64, generator=torch.Generator().manual_seed(seed))}


async def a_round(namespace: Namespace, seed: int, results: list[RoundResult]) -> None:
    await namespace.wait_for_peers(1, timeout_s=30)
    results.append(await namespace.merge(model(seed), samples=10 + seed))


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """Return the home of a node that has merged a round with another one."""
    results: list[RoundResult] = []
    async with (
        sbp2p.Node(home=tmp_path / "a", listen=LISTEN, config=CONFIG) as one,
        sbp2p.Node(home=tmp_path / "b", listen=LISTEN, config=CONFIG) as other,
        one.namespace("digits") as first,
        other.namespace("digits", peers=[one.addresses[0].text]) as second,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a_round, first, 1, results)
            nursery.start_soon(a_round, second, 2, results)
        assert all(len(result.merged) == 2 for result in results)
        record = read_record(tmp_path / "a" / "namespaces" / "digits" / "rounds" / "1")
        lie = tmp_path / "lie"
        lie.mkdir()
        (lie / "round.cbor").write_bytes(replace(record, digest=bytes(32)).to_bytes())
        await one.publish(lie, name="lies/rounds", parents=record.parents)
    return tmp_path / "a"


async def test_a_round_is_shown_and_merged_again(home: Path) -> None:
    cli = Cli(home)
    event = cli.json("audit", "digits/rounds", "--replay").last
    assert event["replayed"] is True
    assert (event["namespace"], event["round"], event["method"]) == ("digits", 1, "mean")
    assert [each["weight"] for each in event["merged"]] == ["1/2", "1/2"]
    assert sorted(each["samples"] for each in event["merged"]) == [11, 12]
    shown = cli.run("audit", "digits/rounds@1").out
    assert all(each["cid"] in shown for each in event["merged"])
    assert event["digest"] in shown


async def test_a_record_that_lies_and_what_is_no_record(home: Path) -> None:
    cli = Cli(home)
    code = sbp2p.PeerMisbehavedError.exit_code
    assert (
        "another result than was signed"
        in cli.run("audit", "lies/rounds", "--replay", code=code).err
    )
    event = cli.json("audit", "lies/rounds").last
    assert event["replayed"] is None
    found = cli.json("audit", "digits/rounds").last["merged"][0]["cid"]
    assert "no round's record" in cli.run("audit", found, code=3).err
    (home / "namespaces" / "digits" / "rounds" / "1" / "round.cbor").write_bytes(b"\xa0")
    assert (
        "is damaged" in cli.run("audit", "digits/rounds", code=sbp2p.CheckpointError.exit_code).err
    )
