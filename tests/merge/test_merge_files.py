"""The files of a merge: laid out as the inputs are, whole or not there, and gone on with."""

from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p.checkpoint.reader import TensorReader
from sbp2p.errors import MergeError, StoreBusyError, StoreError
from sbp2p.merge.digest import digest_of, leaves, tensor_digest
from sbp2p.merge.files import FileSink
from sbp2p.merge.files_layout import Style, index_of, plan, style_of
from sbp2p.merge.tensors import FileSource, TensorSpec
from sbp2p.store import DestinationConflictError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REQUEST = {"method": "mean", "inputs": ["a", "b"]}
PIECE = 1000


def specs_of(*specs: tuple[str, str, tuple[int, ...]]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, dtype, shape) for name, dtype, shape in specs}


SPECS = specs_of(
    ("embed", "BF16", (70, 33)),
    ("scale", "F32", ()),
    ("none", "F32", (0, 4)),
    ("mask", "BOOL", (7,)),
    ("head", "F32", (50, 33)),
)


def content(spec: TensorSpec) -> bytes:
    noise = random.Random(spec.name)  # noqa: S311  (the same bytes every time)
    return noise.randbytes(spec.nbytes)


def digest(spec: TensorSpec) -> bytes:
    return tensor_digest([leaves(memoryview(content(spec)))])


def write(sink: FileSink, spec: TensorSpec, data: bytes | None = None) -> None:
    """Write a tensor in pieces, the last one first."""
    data = content(spec) if data is None else data
    for start in reversed(range(0, len(data), PIECE)):
        sink.write(spec.name, start, memoryview(data[start : start + PIECE]))


def write_rest(sink: FileSink, specs: Mapping[str, TensorSpec]) -> None:
    for name, spec in specs.items():
        if name not in sink.done:
            write(sink, spec)
    sink.finish()


def check(output: Path, specs: Mapping[str, TensorSpec]) -> None:
    with TensorReader(output) as reader:
        assert set(reader.names()) == set(specs)
        for name, spec in specs.items():
            read = reader.read(name)
            assert (read.dtype, read.shape) == (spec.dtype, spec.shape)
            assert bytes(read.data) == content(spec)
    assert not output.with_name(output.name + ".merging").exists()


def header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        found: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return found


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with FileSink(output, request=REQUEST, extras={"a/b.json": b"{}"}) as sink:
        sink.begin(SPECS)
        write_rest(sink, SPECS)
        assert not sink.keeps
        result = sink.digest()
    check(output, SPECS)
    with FileSource(output) as source:
        assert digest_of(source) == result
    assert {path.name for path in output.iterdir()} == {"model.safetensors", "a"}
    assert (output / "a" / "b.json").read_bytes() == b"{}"
    assert header(output / "model.safetensors")["__metadata__"] == {"format": "pt"}


def test_the_library_of_the_format_reads_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    with FileSink(tmp_path / "out", request=REQUEST) as sink:
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found["embed"].shape == (70, 33)
    assert found["embed"].dtype == torch.bfloat16
    assert found["scale"].shape == ()


def test_an_output_of_nothing(tmp_path: Path) -> None:
    with FileSink(tmp_path / "out", request=REQUEST) as sink:
        sink.begin({})
        sink.finish()
    check_names = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert json.loads(check_names[8:]) == {"__metadata__": {"format": "pt"}}


def test_shards_are_those_of_the_model(tmp_path: Path) -> None:
    style = Style(
        {
            "embed": "model-00001-of-00002.safetensors",
            "scale": "model-00001-of-00002.safetensors",
            "none": "model-00002-of-00002.safetensors",
            "mask": "model-00002-of-00002.safetensors",
            "head": "model-00002-of-00002.safetensors",
        },
        "model.safetensors.index.json",
        {"format": "pt", "by": "us"},
    )
    first, again = tmp_path / "first", tmp_path / "again"
    with FileSink(first, request=REQUEST, style=style) as sink:
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    check(first, SPECS)
    index = json.loads((first / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == dict(style.files)
    assert index["metadata"]["total_size"] == sum(spec.nbytes for spec in SPECS.values())
    with TensorReader(first) as reader:
        found = style_of(reader, index_of(first))
    assert dict(found.files) == dict(style.files)
    assert (found.index, dict(found.metadata)) == (style.index, dict(style.metadata))
    with FileSink(again, request=REQUEST, style=found) as sink:
        sink.begin(dict(reversed(SPECS.items())))
        write_rest(sink, SPECS)
    for path in first.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_a_lone_file_may_be_called_anything(tmp_path: Path) -> None:
    with FileSink(tmp_path / "out", request=REQUEST) as sink:
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    (tmp_path / "out" / "model.safetensors").rename(tmp_path / "alice.safetensors")
    with TensorReader(tmp_path / "alice.safetensors") as reader:
        assert set(style_of(reader, lone=True).files.values()) == {"model.safetensors"}
        assert set(style_of(reader).files.values()) == {"alice.safetensors"}


def test_shards_of_a_size(tmp_path: Path) -> None:
    with FileSink(tmp_path / "out", request=REQUEST, max_shard_bytes=5000) as sink:
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    check(tmp_path / "out", SPECS)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]


DTYPES = ["F64", "F32", "BF16", "F8_E4M3", "BOOL", "C64", "I64"]


@given(
    shapes=st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3))),
    limit=st.one_of(st.none(), st.integers(1, 200)),
)
def test_every_layout_has_every_tensor_once_and_aligned(
    shapes: list[tuple[str, list[int]]], limit: int | None
) -> None:
    specs = specs_of(*((f"t{n}", dtype, tuple(s)) for n, (dtype, s) in enumerate(shapes)))
    made = plan(specs, Style(), limit)
    placed = [name for file in made.files for name in file.places]
    assert sorted(placed) == sorted(specs)
    for file in made.files:
        ends = {start + specs[name].nbytes for name, start in file.places.items()}
        assert max(ends, default=len(file.header)) == file.size
        for name, start in file.places.items():
            width = {"F64": 8, "C64": 8, "I64": 8, "F32": 4, "BF16": 2}.get(specs[name].dtype, 1)
            assert start % width == 0
    assert (made.index is None) == (len(made.files) == 1)


def interrupt(output: Path, *names: str, **options: Any) -> None:
    """Write these tensors, and be interrupted."""
    with FileSink(output, request=REQUEST, **options) as sink:
        sink.begin(SPECS)
        for name in names:
            write(sink, SPECS[name])
        sink.write("head", 0, memoryview(b"half"))
        assert sink.keeps == bool(names)


def test_an_interrupted_merge_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "out"
    interrupt(output, "embed", "mask")
    assert not output.exists()
    with FileSink(output, request=REQUEST) as sink:
        assert sink.done == {
            name: digest(SPECS[name]) for name in SPECS if name in ("embed", "mask")
        }
        sink.begin(SPECS)
        write_rest(sink, SPECS)
        assert set(sink.done) == set(SPECS) - {"none"}
    check(output, SPECS)


def test_nothing_is_left_of_a_merge_that_did_nothing(tmp_path: Path) -> None:
    interrupt(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_that_was_damaged_meanwhile_is_not_done(tmp_path: Path) -> None:
    output = tmp_path / "out"
    interrupt(output, "embed", "mask")
    part = tmp_path / "out.merging" / "files" / "model.safetensors"
    data = bytearray(part.read_bytes())
    place = plan(SPECS, Style()).files[0].places["embed"]
    data[place] ^= 1
    part.write_bytes(data)
    with FileSink(output, request=REQUEST) as sink:
        assert set(sink.done) == {"mask"}
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    check(output, SPECS)


def test_files_that_are_gone_are_made_again(tmp_path: Path) -> None:
    output = tmp_path / "out"
    interrupt(output, "embed", "mask")
    (tmp_path / "out.merging" / "files" / "model.safetensors").unlink()
    with FileSink(output, request=REQUEST) as sink:
        assert not sink.done
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    check(output, SPECS)


def test_a_line_that_was_being_written_counts_for_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out"
    interrupt(output, "embed", "mask")
    journal = tmp_path / "out.merging" / "journal"
    journal.write_bytes(journal.read_bytes()[:-3])
    with FileSink(output, request=REQUEST) as sink:
        assert set(sink.done) == {"embed"}
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    check(output, SPECS)


def test_another_merge_is_not_gone_on_with(tmp_path: Path) -> None:
    output = tmp_path / "out"
    interrupt(output, "embed")
    other = {**REQUEST, "method": "median"}
    with pytest.raises(MergeError, match="another method") as caught:
        FileSink(output, request=other).__enter__()
    assert "--restart" in caught.value.hint
    with FileSink(output, request=REQUEST) as sink:  # nothing was lost by that
        assert set(sink.done) == {"embed"}
    with FileSink(output, request=other, restart=True) as sink:
        assert not sink.done
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    check(output, SPECS)


@pytest.mark.parametrize("damage", [b"", b"no JSON\n", b'{"journal": 7, "request": {}}\n', b"[]\n"])
def test_a_damaged_journal_is_not_gone_on_with(tmp_path: Path, damage: bytes) -> None:
    output = tmp_path / "out"
    interrupt(output, "embed")
    journal = tmp_path / "out.merging" / "journal"
    whole = journal.read_bytes()
    journal.write_bytes(damage + whole[40:])
    with pytest.raises(MergeError, match="damaged"):
        FileSink(output, request=REQUEST).__enter__()
    journal.write_bytes(whole)
    with FileSink(output, request=REQUEST) as sink:
        assert set(sink.done) == {"embed"}


def test_a_rejected_input_stays_rejected_and_what_it_made_is_made_again(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with FileSink(output, request=REQUEST) as sink:
        sink.begin(SPECS)
        write(sink, SPECS["embed"], bytes(SPECS["embed"].nbytes))
        sink.reject("mallory, version 3", b"k" * 32, "mask", "NaN")
        sink.begin(SPECS)
        assert not sink.done
        write(sink, SPECS["mask"])
    with FileSink(output, request=REQUEST) as sink:
        (rejected,) = sink.rejected
        assert (rejected.label, rejected.key) == ("mallory, version 3", b"k" * 32)
        assert set(sink.done) == {"mask"}
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    check(output, SPECS)


def test_a_result_of_other_tensors_leaves_no_file_of_the_first(tmp_path: Path) -> None:
    style = Style({"embed": "a.safetensors", "head": "b.safetensors"})
    fewer = {"head": SPECS["head"]}
    with FileSink(tmp_path / "out", request=REQUEST, style=style) as sink:
        sink.begin({name: SPECS[name] for name in style.files})
        sink.begin(fewer)
        write_rest(sink, fewer)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.safetensors"]


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with FileSink(tmp_path / "out", request=REQUEST) as sink:
        with pytest.raises(StoreBusyError):
            FileSink(tmp_path / "out", request=REQUEST).__enter__()
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    check(tmp_path / "out", SPECS)


def test_what_is_there_is_never_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    with FileSink(output, request=REQUEST) as sink:  # an empty folder may be there
        sink.begin(SPECS)
        write_rest(sink, SPECS)
    with pytest.raises(DestinationConflictError):
        FileSink(output, request=REQUEST).__enter__()
    check(output, SPECS)
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    with pytest.raises(StoreError):
        FileSink(file, request=REQUEST).__enter__()
    assert file.read_bytes() == b"mine"


def test_an_unfinished_tensor_is_not_shown(tmp_path: Path) -> None:
    with FileSink(tmp_path / "out", request=REQUEST) as sink:
        sink.begin(SPECS)
        with pytest.raises(ValueError, match="whole"):
            sink.finish()
    assert not (tmp_path / "out").exists()


def test_many_threads_write_one_tensor(tmp_path: Path) -> None:
    specs = specs_of(("big", "F32", (100_000,)))
    data = content(specs["big"])
    with FileSink(tmp_path / "out", request=REQUEST) as sink:
        sink.begin(specs)

        def work(first: int) -> None:
            for start in range(first * 1000, len(data), 4000):
                sink.write("big", start, memoryview(data)[start : start + 1000])

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sink.done == {"big": tensor_digest([leaves(memoryview(data))])}
        sink.finish()
    check(tmp_path / "out", specs)
