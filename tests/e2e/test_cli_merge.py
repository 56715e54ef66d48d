"""`sbp2p merge` as a process: paths, versions and links, into files that are whole or not there."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from sbp2p.checkpoint.reader import TensorReader
from tests.e2e.cli_process import Cli

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytest.importorskip("torch")

pytestmark = pytest.mark.e2e

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NAMES = ("embed", "head")


def model(folder: Path, values: Sequence[float], names: Sequence[str] = NAMES) -> Path:
    """Write a folder with float32 tensors of these values, and what lies beside them."""
    folder.mkdir()
    data = struct.pack(f"<{len(values)}f", *values)
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "by": "test"}}
    for number, name in enumerate(names):
        place = [number * len(data), (number + 1) * len(data)]
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": place}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + data * len(names)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_text('{"layers": 2, "torch_dtype": "float32"}')
    return folder


def values_in(folder: Path, name: str = "embed") -> list[float]:
    with TensorReader(folder) as reader:
        data = reader.read(name).data
        return list(struct.unpack(f"<{len(data) // 4}f", data))


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return model(tmp_path / "a", [1.0, 2.0, -4.0]), model(tmp_path / "b", [3.0, 2.5, 8.0])


def test_folders_are_merged_in_place(cli: Cli, pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    done = cli.json("merge", a, b, "--output", tmp_path / "out")
    assert values_in(tmp_path / "out") == [2.0, 2.25, 2.0]
    assert (tmp_path / "out" / "config.json").read_bytes() == (a / "config.json").read_bytes()
    assert done.last["event"] == "merged"
    assert {each["weight"] for each in done.last["used"]} == {"1/2"}
    assert not cli.home.exists()  # paths alone need no key and no store


def test_without_torch_it_is_said_what_to_install(pair: tuple[Path, Path], tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "torch.py").write_text("raise ImportError('no torch here')\n")
    cli = Cli(tmp_path / "home", PYTHONPATH=str(blocked))
    done = cli.run("merge", *pair, "--output", tmp_path / "out", code=2)
    assert "sbp2p[torch]" in done.err


def test_a_link_is_fetched_once_and_then_merged_from_here(
    cli: Cli, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = pair
    publisher = Cli(tmp_path / "publisher")
    publisher.json("publish", a, "--name", "tiny")
    with publisher.start("seed", "--listen", LOOPBACK) as seeder:
        link = seeder.wait_for("seeding")["link"]
        done = cli.json("merge", link, b, "--output", tmp_path / "out", "--publish", "merged")
    assert values_in(tmp_path / "out") == [2.0, 2.25, 2.0]
    # the seeder is gone, and nobody has to be asked
    again = cli.json("merge", link, b, "--output", tmp_path / "again").last
    assert again["digest"] == next(e for e in done.events if e["event"] == "merged")["digest"]
    assert (cli.home / "inputs").is_dir()


def test_ctrl_c_keeps_what_was_merged(cli: Cli, tmp_path: Path) -> None:
    names = [f"layer{number}" for number in range(60)]
    models = [model(tmp_path / f"m{n}", [float(n)] * 50_000, names) for n in range(4)]
    out = tmp_path / "out"
    words = ["merge", *models, "--output", out, "--threads", "1"]
    with cli.start(*words, "--method", "median") as running:
        running.wait_for("progress", done_bytes=1)
        ended = running.interrupt()
    if ended.code:  # it may have been quicker
        assert ended.code == 130
        assert "interrupted" in ended.err
        assert not out.exists()
        assert cli.json(*words, "--method", "median").last["resumed_tensors"] > 0
    assert values_in(out, "layer59") == [1.5] * 50_000
