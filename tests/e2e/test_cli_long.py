"""A version of very many files, parents and facts: what is shown of it stays readable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sbp2p.cli.text import FACTS_SHOWN, LINES_SHOWN, first
from tests.e2e.cli_process import Cli

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

FILES = 300
SCREEN = LINES_SHOWN + 2 * FACTS_SHOWN + 20


@pytest.mark.parametrize(
    ("count", "shown", "line"),
    [
        (0, 0, None),
        (3, 3, None),
        (4, 3, "... and 1 more file: see --verbose"),
        (1_303, 3, "... and 1,300 more files: see --verbose"),
    ],
)
def test_a_list_is_cut_with_a_count(count: int, shown: int, line: str | None) -> None:
    items = list(range(count))
    assert first(items, 3, "file", everything=False) == (items[:shown], [line] if line else [])
    assert first(items, 3, "file", everything=True) == (items, [])


def make_model(folder: Path) -> Path:
    folder.mkdir()
    for number in range(FILES):
        (folder / f"part-{number:04}.bin").write_bytes(number.to_bytes(4, "big"))
    for number in range(2 * FACTS_SHOWN):
        (folder / f"empty-{number:02}").mkdir()
    return folder


def assert_readable(text: str, *, files: int = FILES) -> None:
    lines = text.splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) < 300
    assert f"... and {files - LINES_SHOWN:,} more" in lines[-1]


def test_no_command_floods_the_terminal(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    cli, reader = Cli(tmp_path / "home"), Cli(tmp_path / "reader")
    shown = cli.run("inspect", model).out
    assert_readable(shown)
    assert f"... and {FACTS_SHOWN} more notes: see --verbose" in shown
    assert len(cli.run("inspect", model, "--verbose").out.splitlines()) > FILES
    facts = [f"--meta=key-{number:02}={'x' * 3_000}" for number in range(2 * FACTS_SHOWN)]
    cli.run("publish", model, "--name", "many", *facts)
    with cli.start("seed", "--listen", "/ip4/127.0.0.1/tcp/0") as seeder:
        link = seeder.wait_for("seeding")["link"]
        for out in (cli.run("inspect", "many").out, reader.run("inspect", link).out):
            assert_readable(out)
            assert f"... and {FACTS_SHOWN} more facts: see --verbose" in out
            assert f"files      {FILES:,}" in out.splitlines()
        assert len(reader.json("inspect", link).last["files"]) == FILES
        got = reader.run("get", link, "--to", tmp_path / "copy")
        assert len((got.out + got.err).splitlines()) <= SCREEN
    assert len(reader.run("ls").out.splitlines()) == 2
    for number in range(FILES):
        (tmp_path / "copy" / f"part-{number:04}.bin").write_bytes(b"other")
    assert_readable(reader.run("verify", "many", code=5).out)
    assert_readable(reader.run("rm", "many", "--files", "--yes").out)
