"""The benchmark of the DHT, in a network of forty nodes and with a little of everything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks import dht

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TINY = dht.Scale(
    lookups=6,
    searches=6,
    churn_searches=8,
    churn_minutes=0.5,
    blocks=120,
    sampled_blocks=2,
    sybil_keys=1,
)


def test_everything_is_measured_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dht, "QUICK", TINY)
    path = tmp_path / "dht.json"
    assert dht.main(["--quick", "--nodes", "40", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    claims = {claim["name"]: claim for claim in document["claims"]}
    for name in ("success_under_churn", "hops_over_log2n", "announce_rpcs_per_record"):
        assert claims[name]["ok"], claims[name]
    assert claims["dials_saved_by_sweep"]["value"] > 10
    (network,) = document["networks"]
    assert network["lookups"]["exact"] == 1.0
    assert network["churn"]["vanished"] == 2
    assert network["churn"]["joined"] >= 1
    assert network["announce"]["servers_per_block"] == 20.0
    assert network["announce"]["lookups"] < TINY.blocks / 4
    assert network["sybils"]["searches"] == 20
    assert "churn: found" in capsys.readouterr().out


def figures(*, hops: float = 2.0, found: int = 1000, rpcs: float = 20.1) -> dht.Figures:
    return dht.Figures(
        lookups=dht.Lookups(
            nodes=1024,
            hops=hops,
            requests=30.0,
            median_s=1.0,
            p95_s=2.0,
            exact=1.0,
            half_gone_success=1.0,
            half_gone_median_s=1.0,
            half_gone_p95_s=2.0,
        ),
        churn=dht.Churn(
            nodes=1024,
            vanished=500,
            joined=500,
            searches=1000,
            found=found,
            median_s=1.0,
            p95_s=2.0,
        ),
        announce=dht.Announce(
            nodes=1024,
            blocks=14_000,
            root_rpcs=150,
            root_dials=80,
            root_s=4.0,
            rpcs_per_block=rpcs,
            dials=1000,
            streams=1000,
            lookups=80,
            seconds=30.0,
            servers_per_block=20.0,
            one_by_one_rpcs=52.0,
            one_by_one_dials=32.0,
            one_by_one_s=2.0,
        ),
        sybils=dht.Sybils(nodes=1024, keys=10, searches=200, one_path=0.9, disjoint=1.0),
        real_s=1.0,
    )


def test_claims_are_about_the_worst_network() -> None:
    worse = figures(hops=50.0, found=0, rpcs=99.0)
    claims = {claim.name: claim for claim in dht.claims_of([figures(), worse])}
    assert claims["announce_rpcs_per_record"].value == 99.0
    assert claims["hops_over_log2n"].value == 5.0
    assert claims["success_under_churn"].value == 0.5
    assert claims["dials_saved_by_sweep"].value == 280.0
    assert not claims["success_under_churn"].ok
    assert all(claim.ok is not False for claim in dht.claims_of([figures()]))


def test_the_95_percent_line() -> None:
    assert dht.p95([float(number) for number in range(1, 101)]) == 95.0
    assert dht.p95([3.0]) == 3.0
