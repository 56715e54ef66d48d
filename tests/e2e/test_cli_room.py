"""Pins, quota and collection from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.cli_process import Cli

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

SIZE = 300_000


def test_pin_unpin_and_gc(tmp_path: Path) -> None:
    seeder, reader = Cli(tmp_path / "seeder"), Cli(tmp_path / "reader")
    links: list[str] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.bin").write_bytes(name.encode() * (SIZE // 3))
        links.append(seeder.json("publish", tmp_path / name, "--name", name).last["link"])
    with seeder.start("seed", "--listen", "/ip4/127.0.0.1/tcp/0", "--no-lan") as seed:
        address = seed.wait_for("listening")["addresses"][0]
        where = ("--peer", address, "--no-lan")
        reader.run("get", links[0], "--to", tmp_path / "a", *where)
        reader.run("get", links[1], "--to", tmp_path / "b", "--unpinned", *where)
        refused = reader.run(
            *("get", links[0], "--to", tmp_path / "c", "--quota", "400kB", *where), code=6
        )
        assert "of the quota of 400000 are used" in refused.err
    # the quota made room where it could
    assert not (tmp_path / "b" / "weights.bin").exists()
    assert (tmp_path / "a" / "weights.bin").exists()
    assert "nothing may go" in reader.run("gc", "--yes").err
    assert reader.json("unpin", "one").last["event"] == "let_go"
    assert not reader.json("ls").last["pinned"]
    assert reader.run("gc", code=2).err.startswith("sbp2p: nobody is there to confirm")
    assert "may go: one version 1" in reader.run("gc", "--dry-run").out
    done = reader.json("gc", "--yes").last
    assert (done["files_deleted"], done["bytes_freed"], done["bytes_used"]) == (1, SIZE, 0)
    assert not (tmp_path / "a" / "weights.bin").exists()
    assert "stays: it was published here" in seeder.run("unpin", "two").out


@pytest.mark.parametrize("size", ["lots", "-1", "5ib"])
def test_what_is_no_size(tmp_path: Path, size: str) -> None:
    done = Cli(tmp_path).run("gc", f"--down-to={size}", code=2)
    assert f"{size!r} is not a size" in done.err
