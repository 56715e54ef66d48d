"""The swarm and resume benchmarks: what they compute, and, as root, one small race."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import netns, resume, swarm
from benchmarks.data import MIB
from benchmarks.race import Outcome, fluid_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.harness import Claim

ROOT = Path(__file__).parents[1]


def ip(*words: str) -> str:
    """Run ip(8)."""
    command = [shutil.which("ip") or "ip", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def claimed(claims: Sequence[Claim]) -> dict[str, Claim]:
    return {claim.name.strip(): claim for claim in claims}


def outcome(*finished: float | None, killed: tuple[int, ...] = (), limit: float = 10.0) -> Outcome:
    done = len([each for each in finished if each is not None])
    return Outcome(
        finished_s=list(finished),
        killed=killed,
        size=1000,
        limit_s=limit,
        waited_s=99.0,
        seeder_link_bytes=1100,
        seeder_payload_bytes=1050,
        received_bytes=1005 * done,
        link_down_bytes=[],
    )


class TestFluidLimit:
    @pytest.mark.parametrize(
        ("seeder", "ups", "downs", "expected"),
        [
            (5.0, [5.0] * 8, [5.0] * 8, 200.0),  # the seeder has to send it once
            (50.0, [5.0] * 4, [5.0] * 4, 200.0),  # a leecher has to receive it
            (10.0, [0.0] * 4, [50.0] * 4, 400.0),  # nobody helps
            (100.0, [0.0, 100.0], [50.0, 50.0], 20.0),
        ],
    )
    def test_the_tightest_of_three_bounds(
        self, seeder: float, ups: list[float], downs: list[float], expected: float
    ) -> None:
        assert fluid_limit(1000, seeder, ups, downs) == expected

    def test_scenarios(self) -> None:
        found = swarm.scenarios(8, [8, 16])
        assert list(found) == ["8", "16", "unequal", "churn"]
        size = 256 * MIB
        assert found["8"].limit_s(size) == found["16"].limit_s(size) == size / 5e6
        assert sorted(found["unequal"].rates) == [20, 20, 20, 40, 40, 40, 200, 200]
        assert found["unequal"].limit_s(size) == size / 2.5e6
        assert found["churn"].killed() == (2, 6)
        assert found["8"].killed() == ()
        assert len(swarm.scenarios(16, [16])["churn"].killed()) == 4
        assert len(found["16"].links()) == 17


class TestOutcome:
    def test_the_last_one_counts(self) -> None:
        found = outcome(11.0, 12.0, 10.5)
        assert found.all_finished
        assert found.last_s == 12.0
        assert found.duplicate_share == pytest.approx(0.005)

    def test_who_was_killed_does_not(self) -> None:
        found = outcome(11.0, None, 10.5, killed=(1,))
        assert found.all_finished
        assert found.last_s == 11.0
        assert found.survivors == 2

    def test_who_never_finished_took_all_the_time_there_was(self) -> None:
        found = outcome(11.0, None, 10.5)
        assert not found.all_finished
        assert found.last_s == 99.0
        assert json.loads(json.dumps(found.to_json()))["finished_s"] == [11.0, None, 10.5]

    def test_claims(self) -> None:
        fast, slow = outcome(10.5, 10.8), outcome(15.0, 16.2)
        races = {
            "8": {"sbp2p": [fast], "libtorrent": [slow], "libtorrent super": [outcome(99.0)]},
            "16": {"sbp2p": [outcome(12.0)], "libtorrent": [outcome(18.0)]},
            "churn": {"sbp2p": [outcome(11.0, None, None, killed=(1,))]},
        }
        found = claimed(swarm.claims_of(races))
        assert found["last_over_fluid_limit_8"].ok
        assert found["last_over_fluid_limit_16"].ok is False
        assert found["last_over_fluid_limit_churn"].ok is None
        assert found["churn_survivors_finished"].value == 0.5
        assert found["churn_survivors_finished"].ok is False
        assert found["seeder_upload_over_file"].value == pytest.approx(1.1)
        assert found["duplicate_bytes"].ok
        # the best of libtorrent's ways, and the worse of the sizes
        assert found["ratio_vs_libtorrent_last_8"].value == pytest.approx(1.5)
        assert found["ratio_vs_libtorrent_last"].value == pytest.approx(1.5)
        swarm.print_races(races)

    def test_nothing_of_ours_is_no_claim(self) -> None:
        assert swarm.claims_of({"8": {"libtorrent": [outcome(1.0)]}}) == []


class TestResume:
    def attempt(self, seconds: float) -> resume.Attempt:
        entered = {"connecting": 0.3, "metadata": 0.4, "local": 0.5, "network": 0.6}
        return resume.Attempt(entered_s=entered, first_block_s=seconds)

    def test_steps_add_up(self) -> None:
        steps = self.attempt(0.7).steps()
        assert list(steps) == list(resume.STEPS)
        assert sum(steps.values()) == pytest.approx(0.7)
        assert steps["starting"] == 0.3

    def test_claims(self) -> None:
        ordeal = resume.Ordeal(
            kills=10,
            in_transfer=5,
            fetches=2,
            sent_bytes=220 * MIB,
            file_bytes=100 * MIB,
            resumed=[self.attempt(0.7), self.attempt(1.2), self.attempt(0.8)],
        )
        found = claimed(resume.claims_of(ordeal))
        assert found["wrong_bytes"].ok
        assert found["refetched_mib_per_kill"].value == 2.0
        assert found["refetched_mib_per_kill_in_transfer"].value == 4.0
        assert found["seconds_to_resume"].value == 0.8
        assert found["of_this_starting"].value == pytest.approx(0.3)
        wrong = claimed(resume.claims_of(replace(ordeal, wrong_bytes=1, resumed=[])))
        assert wrong["wrong_bytes"].ok is False
        assert "seconds_to_resume" not in wrong

    def test_bytes_that_differ_are_counted(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.write_bytes(bytes(3 * MIB))
        two.write_bytes(bytes(2 * MIB) + b"x" + bytes(MIB - 3))
        assert resume.differing_bytes(one, one) == 0
        assert resume.differing_bytes(one, two) == 3


@pytest.mark.parametrize("name", ["swarm", "resume"])
def test_every_benchmark_explains_itself(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--quick" in finished.stdout
    assert "--json" in finished.stdout


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux")
class TestNamespaces:
    @pytest.fixture(autouse=True)
    def _allowed(self) -> None:
        reason = netns.missing()
        if reason is not None:
            pytest.skip(reason)

    def test_links_join_hosts_and_leave_nothing_behind(self) -> None:
        with netns.network([netns.Link(10_000_000, 20_000_000)] * 2) as hosts:
            program = "import socket; socket.create_server(('{}', 5000)).accept()[0].recv(9)"
            listen = hosts[1].command([sys.executable, "-c", program.format(hosts[1].address)])
            dial = f"import socket; socket.create_connection(('{hosts[1].address}', 5000))"
            with subprocess.Popen(listen) as server:
                while subprocess.run(
                    hosts[0].command([sys.executable, "-c", dial]), capture_output=True, check=False
                ).returncode:
                    assert server.poll() is None
            assert all(min(host.traffic().up, host.traffic().down) > 100 for host in hosts)
            names = [host.namespace for host in hosts]
        assert not [name for name in names if Path("/run/netns", name).exists()]

    def test_what_a_crashed_run_left_is_removed_and_nothing_else(self) -> None:
        with subprocess.Popen([sys.executable, "-c", ""]) as gone:
            pass
        left, others = f"{netns.PREFIX}{gone.pid}-1", f"{netns.PREFIX}{os.getpid()}-other"
        for name in (left, others):
            ip("netns", "add", name)
        try:
            command = [shutil.which("ip") or "ip", "netns", "exec", left, "sleep", "60"]
            with subprocess.Popen(command) as sleeper:
                while not ip("netns", "pids", left):
                    assert sleeper.poll() is None
                netns.remove_stale()
                assert sleeper.wait(10) != 0
            assert not Path("/run/netns", left).exists()
            assert Path("/run/netns", others).exists()
        finally:
            ip("netns", "delete", others)

    def test_a_small_race(self, tmp_path: Path) -> None:
        path = tmp_path / "race.json"
        words = ["--quick", "--sizes", "2", "--mib", "4", "--only", "2", "--teams", "sbp2p"]
        command = [sys.executable, "-m", "benchmarks.swarm", *words, "--json", str(path)]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr
        (race,) = json.loads(path.read_text())["races"]["2"]["sbp2p"]
        assert len([each for each in race["finished_s"] if each]) == 2
        assert race["seeder_link_bytes"] > 4 * MIB


def test_without_root_the_race_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    reason = netns.missing()
    assert reason is not None
    assert sys.platform != "linux" or "root" in reason or "iproute2" in reason
