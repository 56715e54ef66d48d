"""Every command and snippet of the README, run as printed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
DEMO_TIMEOUT_S = 400


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    lines = "\n".join(blocks("sh")).splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.strip()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my-model").mkdir()
    tensors = {"w": np.arange(300_000, dtype=np.float32), "b": np.zeros(3, dtype=np.float32)}
    save_file(tensors, folder / "my-model" / "model.safetensors")
    return folder


def environment(world: Path, home: str) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SBP2P_HOME": str(world / home)}


def run(world: Path, command: str, home: str) -> str:
    done = subprocess.run(  # noqa: S602  (the README's own words)
        command,
        shell=True,
        cwd=world,
        env=environment(world, home),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def link(world: Path) -> Iterator[str]:
    """What `sbp2p seed` prints, after `sbp2p publish` as the README has it."""
    publish = next(each for each in commands() if each.startswith("sbp2p publish"))
    assert run(world, publish, "home").startswith("sbp2p:")
    seeder = subprocess.Popen(
        [BIN / "sbp2p", "seed", "--json", "--listen", "/ip4/127.0.0.1/tcp/0"],
        env=environment(world, "home"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert seeder.stdout is not None
    for line in seeder.stdout:
        event = json.loads(line)
        if event["event"] == "seeding":
            yield event["link"]
            break
    seeder.send_signal(signal.SIGINT)
    assert seeder.wait(10) == 0
    seeder.stdout.close()


def test_the_readme_has_the_commands_that_are_tested_here() -> None:
    verbs = [" ".join(each.split()[:2]) for each in commands()]
    assert verbs == [
        "make demo",
        "make test",
        "make dev",
        "sbp2p publish",
        "sbp2p seed",
        "sbp2p get",
        "sbp2p inspect",
        "sbp2p verify",
        "sbp2p get",
        "sbp2p follow",
        "sbp2p doctor",
        "sbp2p merge",
        "sbp2p topology",
    ]


def test_get_and_inspect_take_the_link_that_seed_prints(world: Path, link: str) -> None:
    for command in commands():
        if "LINK" in command:
            run(world, command.replace("LINK", f"'{link}'"), "reader")
    copy = world / "copy" / "model.safetensors"
    assert copy.read_bytes() == (world / "my-model" / "model.safetensors").read_bytes()


def test_verify(world: Path, link: str) -> None:
    verify = next(each for each in commands() if each.startswith("sbp2p verify"))
    assert link
    run(world, verify, "home")


def test_a_peer_id_and_anybody_in_the_dht_are_enough(world: Path, link: str) -> None:
    address = link.partition("?peer=")[2].partition("&")[0]
    peer = address.rpartition("/")[2]
    for command in commands():
        if "PEER" in command:
            words = command.replace("PEER", peer).replace("ADDR", address)
            # the README's `follow` never ends
            last = " --once-current" if "follow" in words else ""
            run(world, f"{words} --trust-new{last}", "newcomer")
    original = (world / "my-model" / "model.safetensors").read_bytes()
    assert (world / "newest" / "model.safetensors").read_bytes() == original
    assert (world / "live" / "1" / "model.safetensors").read_bytes() == original


def test_doctor(world: Path) -> None:
    (doctor,) = [each for each in commands() if each.startswith("sbp2p doctor")]
    assert "ok" in run(world, doctor, "newcomer")


def test_the_python_snippet(world: Path) -> None:
    snippet, _ = blocks("python")
    body = textwrap.indent(snippet, "    ")
    program = f"import sbp2p, trio\nasync def main():\n{body}    print(sorted(tensors))\n"
    script = world / "snippet.py"
    script.write_text(f"{program}trio.run(main)\n", encoding="utf-8")
    assert run(world, f"{sys.executable} {script}", "python-home").endswith("['b', 'w']\n")


def test_merge_and_topology(world: Path, link: str) -> None:
    if not (world / "copy").exists():
        run(world, f"sbp2p get '{link}' --to ./copy", "reader")
    (merge,) = [each for each in commands() if each.startswith("sbp2p merge")]
    run(world, merge, "home")
    merged = load_file(world / "merged" / "model.safetensors")
    original = load_file(world / "my-model" / "model.safetensors")
    assert merged.keys() == original.keys()
    assert all(merged[name].tobytes() == original[name].tobytes() for name in original)
    (topology,) = [each for each in commands() if each.startswith("sbp2p topology")]
    assert "connected     yes" in run(world, topology, "home")


LOOP = """
import sys, torch, trio, sbp2p
PEERS = sys.argv[1:]
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
batches = [torch.full((8, 4), float(len(PEERS) + 1))] * 2

def train(model, batch):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.full_like(parameter, batch.mean().item()))

{snippet}
print("merged", len(result.round.merged), model.weight.unique().tolist())
"""


def test_the_training_snippet(world: Path) -> None:
    _, snippet = blocks("python")
    script = world / "loop.py"
    more = "as swarm:\n    print(*swarm.addresses, flush=True)\n    swarm.wait_for_peers(1)"
    where = ', listen=["/ip4/127.0.0.1/tcp/0"]'
    body = snippet.replace('topology="ring"', f'topology="ring"{where}')
    script.write_text(LOOP.format(snippet=body.replace("as swarm:", more)), encoding="utf-8")
    argv = [sys.executable, str(script)]
    first = subprocess.Popen(argv, env=environment(world, "one"), stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    address = first.stdout.readline().split()[0]
    out = run(world, f"{sys.executable} {script} {address}", "two")
    # 1 and 2, the mean of which is 1.5
    assert out.endswith("merged 2 [1.5]\n")
    rest, _ = first.communicate(timeout=30)
    assert rest.endswith("merged 2 [1.5]\n")


def test_make_demo() -> None:
    # `make test` is what runs this, and `make dev` has run before it
    done = subprocess.run(
        ["make", "--no-print-directory", "demo"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("All of it held.")
