"""What the benchmarks compute, without running one: a figure is worth what its making is."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks import connect, data, dedup, harness, pair, processes, publish, versions
from benchmarks.chunking import (
    FIXED,
    GEAR,
    MAX_SIZE,
    MIN_SIZE,
    PIECE,
    content_defined_lengths,
    fixed_lengths,
    gear_hashes,
)
from benchmarks.harness import Claim, Sample
from sbp2p.checkpoint.formats import ByteSource, inspect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]


def samples(*seconds: float) -> list[Sample]:
    cpu, rss = {"seeder": 2.0, "leecher": 4.0}, {"seeder": 90.0, "leecher": 120.0, "process": 80.0}
    return [Sample(seconds=value, cpu_s=cpu, rss_mb=rss) for value in seconds]


def random_bytes(size: int, seed: int = 1) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(data.random_pieces(size, seed)), np.uint8)


def seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311  (what a benchmark changes)


def claimed(claims: Sequence[Claim]) -> dict[str, Claim]:
    return {claim.name: claim for claim in claims}


class TestHarness:
    def test_everybody_runs_in_every_round_and_takes_turns_at_being_first(self) -> None:
        order: list[str] = []

        def contender(name: str) -> Sample:
            order.append(name)
            return Sample(seconds=1.0)

        found = harness.alternate(
            {name: lambda name=name: contender(name) for name in "abc"},  # type: ignore[misc]
            rounds=5,
        )
        assert {name: len(rows) for name, rows in found.items()} == {"a": 5, "b": 5, "c": 5}
        assert len(order) == 18
        firsts = order[3::3]
        assert set(firsts) == {"a", "b", "c"}
        assert all(set(order[at : at + 3]) == {"a", "b", "c"} for at in range(0, 18, 3))

    def test_a_ratio_is_the_median_of_ratios_within_rounds(self) -> None:
        # the second round was slow for both, which must not change the ratio
        assert harness.median_ratio(samples(1, 10, 2), samples(2, 20, 4)) == 2.0

    @pytest.mark.parametrize(
        ("claim", "ok"),
        [
            (Claim(name="x", value=2.0, unit="x", target=2.0), True),
            (Claim(name="x", value=1.9, unit="x", target=2.0), False),
            (Claim(name="x", value=1.9, unit="x", target=2.0, better="lower"), True),
            (Claim(name="x", value=2.1, unit="x", target=2.0, better="lower"), False),
            (Claim(name="x", value=2.1, unit="x"), None),
        ],
    )
    def test_a_claim_knows_whether_it_is_met(self, claim: Claim, ok: bool | None) -> None:
        assert claim.ok is ok
        row = claim.to_json()
        assert list(row) == ["name", "value", "unit", "target", "ok"]
        assert (row["target"] is None) == (ok is None)

    def test_a_report_holds_claims_rounds_and_machine(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "report.json"
        missed = Claim(name="ratio", value=1.0, unit="x", target=2.0)
        rows = {"us": samples(1, 2)}
        harness.print_table(rows, gigabytes=1.0)
        assert harness.report([missed], rows, json_path=path, extra={"more": 1}) == 0
        document = json.loads(path.read_text())
        assert {"claims", "rounds", "machine", "more"} == set(document)
        assert document["claims"][0]["ok"] is False
        assert [row["seconds"] for row in document["rounds"]["us"]] == [1, 2]
        assert document["machine"]["cores"] > 0
        assert "NOT MET" in capsys.readouterr().out


class TestProcesses:
    def test_a_command_is_timed_and_accounted_for(self) -> None:
        program = "x = bytearray(40_000_000); print('done')"
        finished = processes.run([sys.executable, "-c", program])
        assert finished.output == "done\n"
        assert finished.wall_s > 0
        assert finished.usage.cpu_s > 0
        assert finished.usage.rss_mb > 40

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
    def test_the_memory_that_this_process_once_had_is_not_the_child_s(self) -> None:
        held = b"x" * 200_000_000
        del held
        small = [sys.executable, "-I", "-S", "-c", "pass"]
        now = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
        assert processes.run(small).usage.rss_mb < max(now + 20, 60)

    def test_a_command_that_fails_ends_the_benchmark_with_its_output(self) -> None:
        with pytest.raises(SystemExit, match="gone wrong"):
            processes.run([sys.executable, "-c", "import sys; sys.exit('gone wrong')"])

    def test_a_server_gives_its_line_and_its_usage(self) -> None:
        program = "import sys; print('noise'); print('ready 1', flush=True); sys.stdin.read()"
        with processes.server([sys.executable, "-c", program], ready="ready") as (line, usage):
            assert line == "ready 1"
        assert usage.rss_mb > 1

    def test_a_server_that_ends_early_ends_the_benchmark(self) -> None:
        with (
            pytest.raises(SystemExit, match="before it was ready"),
            processes.server([sys.executable, "-c", "pass"], ready="ready"),
        ):
            pass

    def test_a_missing_peer_says_how_to_get_it(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match="make bench-deps"):
            processes.require(tmp_path / "python", "libtorrent")


class TestData:
    @pytest.mark.parametrize(("size", "hidden"), [(3 * data.MIB, 64), (64 * data.MIB, 2048)])
    def test_a_model_has_the_size_asked_for(self, size: int, hidden: int) -> None:
        total = sum(data.bf16_bytes(shape) for _, shape in data.tensor_shapes(size, hidden))
        assert size - 4096 - 2 * hidden <= total <= size

    def test_the_file_is_safetensors_and_the_same_every_time(self, tmp_path: Path) -> None:
        tensors = [("a", [3, 5]), ("b", [7]), ("empty", [0])]
        one, two, other = (tmp_path / name for name in ("one", "two", "other"))
        data.write_safetensors(one, tensors, seed=1)
        data.write_safetensors(two, tensors, seed=1)
        data.write_safetensors(other, tensors, seed=2)
        content = one.read_bytes()
        assert two.read_bytes() == content
        assert other.read_bytes() != content
        found = inspect(
            ByteSource(len(content), lambda size, offset: content[offset : offset + size])
        )
        assert found.layout is not None
        assert found.layout.tensors is not None
        assert [(t.name, t.length) for t in found.layout.tensors] == [
            ("a", 30),
            ("b", 14),
            ("empty", 0),
        ]

    def test_another_byte_is_noticed(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.write_bytes(b"weights")
        two.write_bytes(b"weights")
        data.require_same(one, two)
        two.write_bytes(b"weighty")
        with pytest.raises(SystemExit, match="does not have the bytes"):
            data.require_same(one, two)


class TestChunking:
    def test_the_hash_is_that_of_a_rolling_one(self) -> None:
        content = random_bytes(500)
        value, expected = 0, []
        for byte in content.tolist():
            value = ((value << 1) + int(GEAR[byte])) & 0xFFFFFFFF
            expected.append(value)
        assert gear_hashes(content).tolist() == expected

    def test_chunks_keep_to_their_sizes_and_their_average(self) -> None:
        content = random_bytes(16 * data.MIB)
        lengths = list(content_defined_lengths(content))
        assert sum(lengths) == len(content)
        assert all(MIN_SIZE <= length <= MAX_SIZE for length in lengths[:-1])
        assert 0.9 < len(content) / len(lengths) / (64 * 1024) < 1.1

    def test_cuts_do_not_depend_on_how_much_is_hashed_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        content = random_bytes(20 * PIECE + 17)
        before = list(content_defined_lengths(content))
        monkeypatch.setattr("benchmarks.chunking.PIECE", PIECE // 4 + 3)
        assert list(content_defined_lengths(content)) == before

    def test_an_insertion_moves_the_cuts_along(self) -> None:
        content = random_bytes(8 * data.MIB)
        moved = np.concatenate([np.zeros(777, np.uint8), content])
        cuts = {cut + 777 for cut in accumulate(content_defined_lengths(content))}
        assert len(cuts - set(accumulate(content_defined_lengths(moved)))) < 8

    def test_bytes_without_any_cut_end_at_the_maximum(self) -> None:
        lengths = list(content_defined_lengths(np.zeros(2 * MAX_SIZE + 5, np.uint8)))
        assert lengths == [MAX_SIZE, MAX_SIZE, 5]

    def test_nothing_is_no_chunk(self) -> None:
        assert list(content_defined_lengths(np.empty(0, np.uint8))) == []
        assert list(fixed_lengths(np.empty(0, np.uint8))) == []

    def test_fixed_blocks(self) -> None:
        assert list(fixed_lengths(np.zeros(2 * FIXED + 5, np.uint8))) == [FIXED, FIXED, 5]


@pytest.fixture(scope="module")
def checkpoint() -> versions.Checkpoint:
    return versions.make_checkpoint(3 * data.MIB, hidden=128, shards=3)


class TestVersions:
    def test_shards_are_about_the_same_size(self, checkpoint: versions.Checkpoint) -> None:
        assert len(checkpoint) == 3
        assert all(shard.tensors for shard in checkpoint)
        assert len({t.seed for t in versions.tensors_of(checkpoint)}) > 10

    @pytest.mark.parametrize("seed", range(3))
    def test_what_each_case_changes(self, checkpoint: versions.Checkpoint, seed: int) -> None:
        total = versions.tensor_bytes(checkpoint)
        changed = {}
        for case, make in versions.CASES.items():
            new = make(checkpoint, seeded(seed))
            assert versions.tensor_bytes(new) == total
            changed[case] = versions.changed_bytes(checkpoint, new) / total
        assert 0.09 < changed.pop(dedup.REPLACED) <= 0.10
        assert changed.pop("everything changed") == 1.0
        assert set(changed.values()) == {0.0}

    def test_resharding_changes_every_name_and_no_tensor(
        self, checkpoint: versions.Checkpoint
    ) -> None:
        new = versions.reshard(checkpoint, seeded(1))
        assert len(new) != len(checkpoint)
        assert not {shard.file for shard in new} & {shard.file for shard in checkpoint}
        old_tensors, new_tensors = versions.tensors_of(checkpoint), versions.tensors_of(new)
        assert [t.seed for t in new_tensors] == [t.seed for t in old_tensors]
        assert not {t.name for t in new_tensors} & {t.name for t in old_tensors}


class TestDedup:
    def test_what_the_ways_to_cut_cost(
        self, checkpoint: versions.Checkpoint, tmp_path: Path
    ) -> None:
        old = versions.write_checkpoint(checkpoint, tmp_path / "old")
        resharded = versions.reshard(checkpoint, seeded(1))
        new = versions.write_checkpoint(resharded, tmp_path / "new")
        for cut in dedup.CUTTERS.values():
            parts = cut(old)
            assert parts.cost_after(cut(old)) == 0
            assert sum(parts.blocks.values()) == sum(p.stat().st_size for p in old.iterdir())
        size = versions.tensor_bytes(checkpoint)
        cost = {name: cut(new).cost_after(cut(old)) / size for name, cut in dedup.CUTTERS.items()}
        assert cost["sbp2p"] < 0.05
        assert cost["fixed"] > 0.5

    def test_a_missing_or_different_file_is_noticed(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        for folder in (one, two):
            folder.mkdir()
            (folder / "a").write_bytes(b"weights")
        dedup.require_same_files(one, two)
        (two / "b").write_bytes(b"more")
        with pytest.raises(SystemExit):
            dedup.require_same_files(one, two)
        (two / "b").unlink()
        (two / "a").write_bytes(b"weighty")
        with pytest.raises(SystemExit):
            dedup.require_same_files(one, two)

    def test_the_claims_are_about_the_worst_round(self) -> None:
        cost = dedup.Cost(
            size=1000, changed=100, sbp2p=101, fixed=900, content_defined=200, fetched=102
        )
        costs = {
            dedup.REPLACED: [cost, replace(cost, fetched=110)],
            dedup.RESHARDED: [replace(cost, fetched=2), replace(cost, fetched=5)],
        }
        found = claimed(dedup.claims_of(costs))
        assert found["resharded_percent_of_size"].value == 0.5
        assert found["resharded_percent_of_size"].ok
        assert found["replaced_vs_changed_bytes"].value == 1.1
        assert found["replaced_vs_changed_bytes"].ok is False
        dedup.print_costs(costs)


class TestPublish:
    @pytest.mark.parametrize("leaves", [1, 2, 3, 5])
    def test_the_merkle_root(self, leaves: int, tmp_path: Path) -> None:
        path = tmp_path / "file"
        content = random_bytes(leaves * publish.LEAF - 5).tobytes()
        path.write_bytes(content)
        layer = [
            hashlib.sha256(content[at : at + publish.LEAF]).digest()
            for at in range(0, len(content), publish.LEAF)
        ]

        def root(first: int, count: int) -> bytes:
            if count == 1:
                return layer[first] if first < leaves else bytes(32)
            half = count // 2
            return hashlib.sha256(root(first, half) + root(first + half, half)).digest()

        width = {1: 1, 2: 2, 3: 4, 5: 8}[leaves]
        assert publish.merkle_root(path) == root(0, width)

    def test_piece_hashes(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"abcde")
        expected = [hashlib.sha1(piece, usedforsecurity=False) for piece in (b"abc", b"de")]
        assert publish.piece_hashes(path, 3) == b"".join(each.digest() for each in expected)

    def test_claims(self) -> None:
        rows = {"sbp2p": samples(1, 1), "libtorrent create": samples(3, 3), "b3sum": samples(1, 2)}
        found = claimed(publish.claims_of(rows, gigabytes=2.0))
        assert found["ratio_vs_libtorrent_create"].value == 3.0
        assert found["ratio_vs_libtorrent_create"].ok
        assert found["ratio_vs_b3sum"].ok is None
        assert found["publish_gb_per_s"].value == 2.0
        assert found["peak_rss_mb"].value == 80.0


class TestClaims:
    def test_pair(self) -> None:
        rows = {
            "sbp2p": samples(2, 2),
            "libtorrent plain": samples(4, 4),
            "libtorrent rc4": samples(5, 5),
            "curl nginx": samples(3, 3),
        }
        found = claimed(pair.claims_of(rows, gigabytes=2.0))
        assert found["ratio_vs_libtorrent_plain"].ok
        assert found["ratio_vs_libtorrent_encrypted"].ok is False
        assert found["ratio_vs_curl_nginx"].value == 1.5
        assert found["cpu_s_per_gb_leecher"].value == 2.0
        assert found["peak_rss_mb_seeder"].ok

    def test_growth_of_memory(self) -> None:
        larger = [replace(samples(1)[0], rss_mb={"seeder": 99.1, "leecher": 120.0})]
        found = claimed(pair.memory_claims(samples(1), larger))
        assert found["rss_growth_seeder_1_to_4_gib"].ok is False
        assert found["rss_growth_leecher_1_to_4_gib"].value == 0.0

    def test_connect(self) -> None:
        rows = {"sbp2p": samples(0.01), "py libp2p": samples(0.25)}
        dials = {name: connect.Dials(["dial"], 1) for name in rows}
        for name, each in dials.items():
            each.rounds.append([rows[name][0].seconds * 2])
        found = claimed(connect.claims_of(rows, dials))
        assert found["ratio_vs_py_libp2p"].value == pytest.approx(25.0)
        assert found["sbp2p_first_dial_ms"].value == pytest.approx(20.0)


@pytest.mark.parametrize("name", ["connect", "dedup", "noise", "pair", "publish"])
def test_every_benchmark_explains_itself(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--quick" in finished.stdout
    assert "--json" in finished.stdout
