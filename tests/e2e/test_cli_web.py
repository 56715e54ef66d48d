"""Web seeds from the command line: a real seed, and a real web server that has what it lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.cli_process import Cli
from tests.runtime.web_server import WebServer, serve_web

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e


def test_what_the_seed_lost_comes_from_the_web(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    files = tmp_path / "model"
    files.mkdir()
    (files / "weights.bin").write_bytes(data)
    (files / "config.json").write_bytes(b"{}")
    seeder, reader = Cli(tmp_path / "seeder"), Cli(tmp_path / "reader")
    quick = ("--no-lan", "--patience", "1")
    server = WebServer({"weights.bin": data, "config.json": b"{}"})
    with serve_web(server):
        seeder.run("publish", files, "--name", "model", "--web-seed", server.url)
        shown = seeder.json("inspect", "model").last
        assert shown["meta"]["web_seeds"] == server.url
        with seeder.start("seed", "--listen", "/ip4/127.0.0.1/tcp/0", "--no-lan") as seed:
            link = seed.wait_for("seeding")["link"]
            (files / "weights.bin").unlink()
            # what the manifest names lies in a private network, so it is not asked
            never = reader.run("get", link, "--to", tmp_path / "a", *quick, code=3)
            assert "not a public one" in never.err
            assert not server.requests
            words = ("--to", tmp_path / "b", "--web-seed", server.url, *quick)
            done = reader.json("get", link, *words).last
    assert (tmp_path / "b" / "weights.bin").read_bytes() == data
    assert done["web_seeds"][0]["url"] == server.url
    assert done["web_seeds"][0]["bytes"] >= len(data) // 2
    assert done["web_seeds"][0]["dropped"] == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "LINK", "--web", "maybe"], "--web 'maybe' is none of fallback, first, never"),
        (["get", "LINK", "--web-seed", "file:///etc"], "only http and https"),
        (["publish", ".", "--web-seed", "nowhere"], "--web-seed: only http and https"),
        (["publish", ".", "--web-seed", "http://h/", "--meta", "web_seeds=x"], "say the same"),
    ],
)
def test_wrong_words(tmp_path: Path, words: list[str], message: str) -> None:
    cid = "bafyr4iaetjzyy2cdlrbbwjckvsa43mtyokmhrzgijfhwzmeqaduvlzav3a"
    done = Cli(tmp_path).run(*(each.replace("LINK", f"sbp2p:{cid}") for each in words), code=2)
    assert message in done.err
