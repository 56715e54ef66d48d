"""Everything that can go wrong, as the user sees it: two lines, an exit code, no traceback."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.cli_process import Cli, closed_port, environment

pytestmark = pytest.mark.e2e

PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
CID = "bafyr4iaetjzyy2cdlrbbwjckvsa43mtyokmhrzgijfhwzmeqaduvlzav3a"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["get", "--frobnicate"], "no such option: --frobnicate", "see `sbp2p get --help`"),
        (["get"], "missing argument 'LINK'", "see `sbp2p get --help`"),
        (["publihs"], "no such command 'publihs'. Did you mean 'publish'?", "see `sbp2p --help`"),
        (["bench", "/ip4/127.0.0.1/tcp/1", "--size", "x"], "--size", "see `sbp2p bench --help`"),
        (["get", "x", "--patience", "-1"], "x>=0", "see `sbp2p get --help`"),
        (["bench", "x", "--size", "16385"], "1<=x<=16384", "see `sbp2p bench --help`"),
    ],
)
def test_a_wrong_command_line(cli: Cli, words: list[str], message: str, hint: str) -> None:
    done = cli.json(*words, code=2)
    first, second = done.err.splitlines()
    assert first.startswith("sbp2p: ")
    assert message in first
    assert second == f"  hint: {hint}"
    event = done.last
    assert (event["event"], event["hint"], event["exit_code"]) == ("error", hint, 2)
    assert not cli.home.exists()


def test_patience_is_the_users_choice(tmp_path: Path) -> None:
    files = tmp_path / "model"
    files.mkdir()
    (files / "weights.bin").write_bytes(bytes(range(256)) * 1000)
    seeder, reader = Cli(tmp_path / "seeder"), Cli(tmp_path / "reader")
    seeder.run("publish", files, "--name", "model")
    with seeder.start("seed", "--listen", "/ip4/127.0.0.1/tcp/0") as seed:
        link = seed.wait_for("seeding")["link"]
        (files / "weights.bin").write_bytes(b"gone")
        # it says that it has everything and has nothing: no patience is needed
        began = time.monotonic()
        reader.run("get", link, "--to", tmp_path / "copy", "--patience", "600", code=3)
        assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["get", "https://example.org/model"], 2, "does not begin with 'sbp2p:'"),
        (["get", f"sbp2p:{CID}?peer=/ip4/1.2.3.4/tcp/1"], 2, "does not end in /p2p/"),
        (["get", f"sbp2p:{CID}", "--listen", "/ip4/127.0.0.1/tcp/0"], 2, "goes with --seed"),
        (["seed", "--allow", "nobody"], 2, "'nobody' is not a peer id"),
        (["seed", "--listen", "localhost:4801"], 2, "--listen 'localhost:4801'"),
        (["seed", "--upload-limit", "fast"], 2, "--upload-limit: 'fast' is not a rate"),
        (["seed", "--peer-upload-limit", "5"], 2, "--peer-upload-limit: '5' has no unit"),
        (["get", f"sbp2p:{CID}", "--download-limit", "3kB"], 2, "less than 4 kB a second"),
        (["seed", "--role", "king"], 2, "'king' is no role"),
        (["seed", "--role", "nobody/x=leech"], 2, "'nobody' is not a peer id"),
        (["get", f"sbp2p:{CID}", "--role", "seed"], 2, "it does not receive"),
        (["publish", "there/is/nothing"], 8, "cannot read there/is/nothing"),
        (["publish", ".", "--meta", "novalue"], 2, "--meta 'novalue' is not KEY=VALUE"),
        (["inspect", "unknown"], 3, "no version here is called 'unknown'"),
        (["bench", "nowhere"], 2, "'nowhere' is not an address"),
    ],
)
def test_arguments_that_mean_nothing(cli: Cli, words: list[str], code: int, message: str) -> None:
    done = cli.run(*words, code=code)
    assert message in done.err
    assert done.err.startswith("sbp2p: ")
    assert len(done.err.splitlines()) <= 2
    assert done.out == ""


def test_a_peer_that_does_not_answer(cli: Cli, tmp_path: Path) -> None:
    with closed_port() as port:
        address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}"
        done = cli.json("get", f"sbp2p:{CID}?peer={address}", "--to", tmp_path / "x", code=4)
        assert done.last["event"] == "error"
        assert done.last["exit_code"] == 4
        assert done.last["hint"]
        assert "connection refused" in cli.run("bench", address, code=4).err
    assert not (tmp_path / "x").exists()


def test_a_link_without_anybody_to_ask(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("get", f"sbp2p:{CID}", "--to", tmp_path / "x", code=4)
    assert "hint: " in done.err


def test_a_key_file_that_cannot_be_used(cli: Cli) -> None:
    cli.home.mkdir()
    key = cli.home / "identity.pem"
    key.write_text("not a key\n")
    key.chmod(0o600)
    done = cli.json("id", code=9)
    assert str(key) in done.last["error"]
    assert done.last["exit_code"] == 9
    key.chmod(0o644)
    assert "chmod" in cli.run("publish", cli.home, code=9).err
    assert key.read_text() == "not a key\n", "a key file is never replaced"


def test_a_home_that_cannot_be(cli: Cli) -> None:
    cli.home.write_text("a file")
    assert cli.run("ls", code=6).err.startswith("sbp2p: cannot ")


def test_a_file_that_cannot_be_published(cli: Cli, tmp_path: Path) -> None:
    model = tmp_path / "mod\x1b[31mel"
    model.mkdir()
    (model / "link").symlink_to("/etc/passwd")
    done = cli.run("publish", model, "--name", "x", code=8)
    assert "\x1b" not in done.err
    assert r"mod\x1b[31mel/link is a symbolic link" in done.err


# -- what no command should do ---------------------------------------------------------------------

BUG = """
import sys
from sbp2p.cli.console import Settings
from sbp2p.cli.invocation import Invocation, execute

def run(console):
    try:
        {{}}["oops"]
    except KeyError as error:
        raise ExceptionGroup("nursery", [error])

sys.exit(execute(Invocation(Settings(verbose={verbose}), run)))
"""


@pytest.mark.parametrize("verbose", [False, True])
def test_a_bug_is_one_line_and_a_traceback_only_when_asked_for(verbose: bool) -> None:
    argv = [sys.executable, "-c", BUG.format(verbose=verbose)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment())
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[0] == "sbp2p: this is a bug in sbp2p: KeyError: 'oops' (<string>:8)"
    assert lines[1].startswith("  hint: run it again with --verbose")
    assert (len(lines) > 2) == verbose == ("Traceback" in done.stderr)


STDOUT_USERS = [
    ["--help"],
    ["--version"],
    ["get", "--help"],
    ["id", "--quiet"],
    ["id", "--json"],
]


@pytest.mark.parametrize("words", STDOUT_USERS, ids=" ".join)
def test_a_reader_of_stdout_that_went_away_is_no_error(cli: Cli, words: list[str]) -> None:
    cli.run("id")  # so that nothing is told about a new identity
    process = subprocess.Popen(
        [sys.executable, "-m", "sbp2p", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(SBP2P_HOME=str(cli.home)),
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    complaint = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), complaint) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        *((words, 6, "stdout: No space left on device") for words in STDOUT_USERS),
        (["verify", "nothing", "--json"], 3, "no version here is called 'nothing'"),
        (["frobnicate", "--json"], 2, "no such command 'frobnicate'"),
    ],
)
def test_a_stdout_that_cannot_be_written_to(
    cli: Cli, words: list[str], code: int, message: str
) -> None:
    cli.run("id")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sbp2p", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment(SBP2P_HOME=str(cli.home)),
        )
    lines = done.stderr.splitlines()
    assert (done.returncode, lines[0]) == (code, f"sbp2p: {message}")
    assert len(lines) <= 2


@pytest.mark.parametrize("words", [*STDOUT_USERS, ["ls"]], ids=" ".join)
def test_a_stdout_that_was_closed_from_the_start(cli: Cli, words: list[str]) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-m", "sbp2p", *words],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=environment(SBP2P_HOME=str(cli.home)),
    )
    assert done.returncode == 0, done.stderr
    assert "bug" not in done.stderr


def test_names_survive_a_terminal_without_unicode(cli: Cli, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "caf\N{LATIN SMALL LETTER E WITH ACUTE}").write_text("x")
    assert r"caf\xe9" in cli.run("inspect", model, PYTHONIOENCODING="ascii").out
