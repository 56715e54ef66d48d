"""`sbp2p merge` without a process of its own: torch takes seconds to load in each."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from sbp2p.checkpoint.reader import TensorReader
from sbp2p.cli.console import Console
from sbp2p.cli.merge import command
from sbp2p.cli.signals import Interrupts
from sbp2p.config import StoreConfig
from sbp2p.errors import CheckpointError, MergeError, Sbp2pError, StoreError
from sbp2p.merge.digest import digest_of
from sbp2p.merge.files import FileSink
from sbp2p.merge.method import get
from sbp2p.merge.tensors import FileSource, TensorSpec
from sbp2p.store import Store
from tests.e2e.test_cli_merge import NAMES, model, values_in

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

from sbp2p.cli.merge_inputs import locate_path
from sbp2p.cli.merge_job import Job, Opened, Weighted, work
from sbp2p.merge.policies import Policies


@dataclass(frozen=True)
class Said:
    """What a command wrote to stdout."""

    out: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]


Merge = Callable[..., Said]


@pytest.fixture
def merge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Merge:
    """Run the command with inputs and options by their names in Python; JSON unless told not to."""

    def run(*inputs: object, **options: Any) -> Said:
        given = {"home": str(tmp_path / "home"), "json": True, **options}
        invocation = command(inputs=list(map(str, inputs)), **given)
        assert invocation.run(Console(invocation.settings, Interrupts())) == 0
        return Said(capsys.readouterr().out)

    return run


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return model(tmp_path / "a", [1.0, 2.0, -4.0]), model(tmp_path / "b", [3.0, 2.5, 8.0])


def test_no_order_and_no_number_of_threads_changes_a_bit(
    merge: Merge, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = pair
    one = merge(a, b, output=str(tmp_path / "one"), threads=1).last
    two = merge(b, a, output=str(tmp_path / "two"), threads=3).last
    assert one["digest"] == two["digest"]
    files = [tmp_path / name / "model.safetensors" for name in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(Sbp2pError, match="not empty"):
        merge(a, b, output=str(tmp_path / "one"))


def test_weights_dtype_and_shards(merge: Merge, pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    out = tmp_path / "out"
    said = merge(
        *(a, b),
        output=str(out),
        weights=[f"{b}=3"],
        dtype="BF16",
        max_shard_size="6",
        json=False,
    )
    with TensorReader(out) as reader:
        assert reader.span("head").dtype == "BF16"
        assert [path.name for path in reader.files()] == [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ]
        assert bytes(reader.read("embed").data) == struct.pack("<3H", 0x4020, 0x4018, 0x40A0)
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert "3/4" in said.out
    assert "digest" in said.out


def test_a_dry_run_writes_nothing(merge: Merge, pair: tuple[Path, Path], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = merge(*pair, output=str(tmp_path / "out"), dry_run=True).last
    assert done["event"] == "preview"
    assert done["copied"] == ["config.json"]
    assert [each["size"] for each in done["inputs"]] == [24, 24]
    assert "2 tensors" in merge(*pair, output="out", dry_run=True, json=False).out
    assert sorted(tmp_path.rglob("*")) == before


def test_an_input_with_a_nan_is_left_out_and_named(
    merge: Merge, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    bad = model(tmp_path / "bad", [1.0, float("nan"), 1.0])
    done = merge(*pair, bad, output=str(tmp_path / "out"))
    assert values_in(tmp_path / "out") == [2.0, 2.25, 2.0]
    (rejected,) = done.last["rejected"]
    assert rejected["input"] == str(bad)
    assert rejected["tensor"] in NAMES
    text = merge(*pair, bad, output=str(tmp_path / "again"), json=False).out
    assert f"left out: {bad}" in text


def test_names_that_differ(merge: Merge, pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, _ = pair
    other = model(tmp_path / "other", [5.0, 4.0, 4.0], ["head", "tail"])
    common = merge(a, other, output=str(tmp_path / "common"), names="intersection").last
    assert common["dropped"] == ["embed", "tail"]
    assert values_in(tmp_path / "common", "head") == [3.0, 3.0, 0.0]
    local = merge(a, other, output=str(tmp_path / "local"), names="keep-local").last
    assert local["kept"] == ["embed"]
    assert values_in(tmp_path / "local", "embed") == [1.0, 2.0, -4.0]
    said = merge(*pair, output=str(tmp_path / "own"), policies=["emb*=local"], json=False).out
    assert "1/2" in said
    assert values_in(tmp_path / "own", "embed") == [1.0, 2.0, -4.0]
    assert values_in(tmp_path / "own", "head") == [2.0, 2.25, 2.0]


@pytest.mark.parametrize(
    ("more", "options", "code", "said"),
    [
        ([], {"output": None}, 2, "no folder for the result"),
        ([], {"method": "nonsense"}, 11, "nonsense"),
        ([], {"options": ["density=0.2"]}, 11, "mean"),
        ([], {"options": ["density"]}, 2, "--option"),
        ([], {"method": "ties"}, 11, "base"),
        ([], {"weights": ["1"]}, 2, "weights"),
        ([], {"names": "some"}, 2, "--names"),
        ([], {"policies": ["x"]}, 2, "--policy"),
        ([], {"policies": ["*=best"]}, 2, "best"),
        ([], {"dtype": "I8"}, 11, "I8"),
        ([], {"max_shard_size": "0"}, 2, "--max-shard-size"),
        ([], {"publish": ".."}, 2, "--publish"),
        (["other"], {}, 11, "lacks"),
        (["missing-version"], {}, 3, "missing-version"),
    ],
)
def test_what_cannot_be_merged(
    merge: Merge,
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    options: dict[str, Any],
    code: int,
    said: str,
) -> None:
    model(tmp_path / "other", [1.0], ["embed", "tail"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Sbp2pError, match=said) as caught:
        merge(*pair, *more, **{"output": "out", **options})
    assert caught.value.exit_code == code
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.merging").exists()


def test_the_methods_are_listed(merge: Merge) -> None:
    found = {event["name"]: event for event in merge(show_methods=True).events}
    assert {"mean", "median", "ties", "krum", "slerp"} <= set(found)
    assert found["ties"]["needs_base"] is True
    assert all(event["paper"] and event["breakdown"] for event in found.values())
    assert found["ties"]["options"]["density"] == "0.2"
    said = merge(show_methods=True, json=False).out
    assert "ties (needs --base)" in said
    assert "whole_model=false" in said


def test_versions_are_parents_of_what_is_published(
    merge: Merge, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = pair
    base = model(tmp_path / "base", [0.0, 0.0, 0.0])
    first = merge(a, a, output=str(tmp_path / "first"), publish="first").last
    done = merge(
        *("first@1", b),
        output=str(tmp_path / "out"),
        base=str(base),
        method="task-arithmetic",
        options=["scale=0.5"],
        publish="merged",
    )
    assert [event["event"] for event in done.events[-2:]] == ["merged", "published"]
    labels = {each["input"] for each in done.events[-2]["used"]}
    assert any(label.startswith("first version 1 by ") for label in labels)
    assert values_in(tmp_path / "out") == [2.0, 2.25, 2.0]
    with Store.open(tmp_path / "home", StoreConfig()) as store:
        manifest = next(each.manifest for each in store.versions() if each.name == "merged")
    assert [str(parent) for parent in manifest.parents] == [first["cid"]]
    assert manifest.meta["merge_method"] == "task-arithmetic"
    assert manifest.meta["merge_options"] == '{"scale": "0.5"}'
    said = merge("first", b, output=str(tmp_path / "two"), publish="two", json=False).out
    assert said.startswith("sbp2p:")


def test_a_version_whose_files_changed_is_refused(
    merge: Merge, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = pair
    merge(a, b, output=str(tmp_path / "first"), publish="first")
    file = tmp_path / "first" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="has changed since"):
        merge("first", b, output=str(tmp_path / "out"))
    file.unlink()
    with pytest.raises(StoreError, match="cannot look at"):
        merge("first", b, output=str(tmp_path / "out"))


def test_a_merge_that_is_stopped_goes_on(tmp_path: Path) -> None:
    names = [f"layer{number}" for number in range(20)]
    inputs = [
        Weighted(locate_path(str(model(tmp_path / f"m{n}", [float(n)] * 9, names))), Fraction(1))
        for n in range(3)
    ]
    job = Job(
        method=get("mean"),
        options={},
        names="strict",
        policies=Policies(),
        policy_texts=(),
        dtype="keep",
        output=tmp_path / "out",
        max_shard_bytes=None,
        threads=1,
        restart=False,
    )
    with (
        Opened(job, inputs, None) as opened,
        FileSink(
            job.output, request=opened.request(opened.inputs()), style=opened.like.style()
        ) as sink,
    ):
        specs = opened.models[0].source.specs()
        sink.begin(specs)
        for name in names[:7]:
            sink.write(name, 0, memoryview(struct.pack("<9f", *[1.0] * 9)))
    outcome = work(job, inputs, None, lambda done, total: None, lambda: False)
    assert outcome.resumed == 7
    assert all(values_in(tmp_path / "out", name) == [1.0] * 9 for name in names)
    with FileSource(tmp_path / "out") as source:
        assert digest_of(source) == outcome.digest


def test_an_input_that_changed_meanwhile_is_noticed(
    merge: Merge, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = pair
    out = tmp_path / "out"
    request = {"inputs": [], "method": "mean"}
    with FileSink(out, request=request) as sink:
        sink.begin({"embed": TensorSpec("embed", "F32", (3,))})
        sink.write("embed", 0, memoryview(bytes(12)))
    with pytest.raises(MergeError, match="unfinished merge with another"):
        merge(a, b, output=str(out))
    merge(a, b, output=str(out), restart=True)
    assert values_in(out) == [2.0, 2.25, 2.0]
