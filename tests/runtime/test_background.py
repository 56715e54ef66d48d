"""Training loops that are not async train together; each node has a thread of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier

import sbp2p
from sbp2p.errors import ConfigError, MergeError, NotFoundError, PeerUnreachableError
from tests.runtime.training_pair import LOOPBACK, WAIT_S, open_pair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sbp2p.training import Background, StepResult

ROOT = Path(__file__).resolve().parents[2]
SLACK_S = 3.0
"""A second is promised; the machine that tests may be busy with something else."""


def linear(value: float) -> torch.nn.Linear:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def value(model: torch.nn.Module) -> float:
    """Return the one number that a model consists of."""
    found = {number for parameter in model.parameters() for number in parameter.view(-1).tolist()}
    assert len(found) == 1
    return float(found.pop())


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A thread for the other training loop."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_two_loops_end_with_the_same_model(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    ours, theirs = linear(1.0), linear(3.0)
    with open_pair(tmp_path, method="fedavg") as (alice, bob):
        other = pool.submit(bob.step, theirs, samples=3)
        result = alice.step(ours, samples=1)
        assert other.result(WAIT_S).round is not None
        assert value(ours) == value(theirs) == 2.5
        assert not result.is_waiting
        assert result.round is not None
        assert [each.samples for each in result.round.merged] == [1, 3]
        assert result.round.merged[0].peer_id == alice.peer_id
        assert alice.peers == (bob.peer_id,)
        assert alice.history == result.finished
    assert len(alice.history) == 1


def test_training_goes_on_while_a_round_does(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    ours, theirs = linear(1.0), linear(3.0)
    with open_pair(tmp_path) as (alice, bob):
        first = alice.step(ours, wait_s=0)
        assert first.is_waiting
        assert first.finished == ()
        assert alice.is_waiting
        assert alice.step(ours, wait_s=0.01).is_waiting  # nobody else is there yet
        assert value(ours) == 1.0
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.add_(10.0)  # trained
        other = pool.submit(lambda: [bob.step(theirs), bob.step(theirs)])
        second = alice.step(ours)
        assert [each.round for each in second.finished] == [1, 2]
        assert len(other.result(WAIT_S)) == 2
        # the first round made 2.0 of both, and the 10.0 were kept; then the mean of 12.0 and 2.0
        assert value(ours) == value(theirs) == 7.0
        # the samples of the step that found the round under way are counted with the second's
        assert [each.merged[0].samples for each in second.finished] == [1, 2]


def test_the_last_round_can_be_collected_without_another(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    ours, theirs = linear(1.0), linear(3.0)
    with open_pair(tmp_path) as (alice, bob):
        assert alice.collect(ours).finished == ()
        alice.step(ours, wait_s=0)
        assert alice.collect(ours, wait_s=0).is_waiting
        other = pool.submit(bob.step, theirs, samples=0)
        result = alice.collect(ours)
        assert other.result(WAIT_S).round is not None
        assert [each.round for each in result.finished] == [1]
        assert not alice.is_waiting
    assert value(ours) == value(theirs) == 2.0


def test_a_newcomer_without_a_model_gets_one(tmp_path: Path) -> None:
    rows, labels = np.random.default_rng(1).normal(size=(40, 3)), np.arange(40) % 2
    donor, newcomer = SGDClassifier(random_state=1).fit(rows, labels), SGDClassifier()
    with open_pair(tmp_path) as (alice, bob):
        with pytest.raises(NotFoundError) as caught:
            bob.bootstrap(newcomer, timeout_s=0.2)
        assert caught.value.hint
        alice.step(donor, wait_s=0)
        done = bob.bootstrap(newcomer, timeout_s=WAIT_S)
        assert done.peer_id == alice.peer_id
    assert np.array_equal(newcomer.predict(rows), donor.predict(rows))


def test_a_seed_only_gives_and_a_leech_only_takes(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    ours, theirs = linear(1.0), linear(3.0)
    with sbp2p.background("d", home=tmp_path / "a", listen=LOOPBACK, role="seed") as seed:
        peers = seed.addresses
        with sbp2p.background("d", home=tmp_path / "b", peers=peers, role="leech") as leech:
            leech.wait_for_peers(1, timeout_s=WAIT_S)
            other = pool.submit(leech.step, theirs)
            assert seed.step(ours).finished == ()
            assert other.result(WAIT_S).round is not None
    assert value(ours) == value(theirs) == 1.0


def test_what_goes_wrong_in_a_round_is_raised_by_step_and_changes_nothing(tmp_path: Path) -> None:
    model = linear(1.0)
    with sbp2p.background("d", home=tmp_path, method="no-such-method") as swarm:
        with pytest.raises(MergeError, match="no-such-method") as caught:
            swarm.step(model)
        assert caught.value.hint
        swarm.step(model, wait_s=0)
        with pytest.raises(MergeError):
            swarm.step(model)
        assert value(model) == 1.0
        with pytest.raises(MergeError, match=r"no plugin wraps a builtins\.object"):
            swarm.step(object())


def test_a_node_that_cannot_be_opened_raises_and_leaves_no_thread(tmp_path: Path) -> None:
    for options, error in (
        ({"listen": ["/ip4/127.0.0.1"]}, ConfigError),
        ({"topology": "no-such-topology"}, ConfigError),
    ):
        with pytest.raises(error) as caught, sbp2p.background("d", home=tmp_path, **options):
            pass
        assert isinstance(caught.value, sbp2p.Sbp2pError)
    assert not [each for each in threading.enumerate() if each.name.startswith("sbp2p")]


def test_waiting_for_peers_ends_when_it_was_said(tmp_path: Path) -> None:
    with sbp2p.background("d", home=tmp_path) as swarm:
        with pytest.raises(PeerUnreachableError, match="0 of 1 members"):
            swarm.wait_for_peers(1, timeout_s=0.05)


def test_leaving_the_block_ends_a_round_that_is_under_way(tmp_path: Path) -> None:
    with open_pair(tmp_path) as (alice, _):
        assert alice.step(linear(1.0), wait_s=0).is_waiting
        begun = time.monotonic()
    assert time.monotonic() - begun < WAIT_S
    assert not [each for each in threading.enumerate() if each.name.startswith("sbp2p")]
    assert not alice.is_waiting


def test_what_cannot_be_is_refused_at_once(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    swarm = sbp2p.background("d", home=tmp_path)
    with pytest.raises(RuntimeError, match="inside the `with` block"):
        swarm.step(linear(1.0))
    with swarm:
        with pytest.raises(ValueError, match="negative"):
            swarm.step(linear(1.0), samples=-1)
        with pytest.raises(ValueError, match="negative"):
            swarm.step(linear(1.0), wait_s=-0.1)
        waiting = pool.submit(swarm.bootstrap, linear(1.0), timeout_s=0.5)
        with pytest.raises(RuntimeError, match="another thread"):
            collect_until_done(swarm, waiting)
        assert swarm.peers == ()
        with pytest.raises(NotFoundError):
            waiting.result(WAIT_S)
    with pytest.raises(RuntimeError, match="open already"):
        swarm.__enter__()
    with pytest.raises(RuntimeError, match="inside the `with` block"):
        _ = swarm.addresses


def collect_until_done(swarm: Background, other: Future[Any]) -> None:
    while not other.done():
        swarm.collect(linear(1.0))


async def test_an_async_program_is_told_what_to_use(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"use Node and node\.namespace"):
        sbp2p.background("d", home=tmp_path).__enter__()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_told_and_leaves_the_parents_node_alone(tmp_path: Path) -> None:
    with sbp2p.background("d", home=tmp_path) as swarm:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
            child = os.fork()
        if child == 0:
            os._exit(told_in_fork(swarm))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert swarm.peers == ()


def told_in_fork(swarm: Background) -> int:
    try:
        _ = swarm.peers
    except RuntimeError as error:
        swarm.__exit__(None, None, None)
        return 0 if "forked process" in str(error) and not swarm.is_open else 2
    return 1


PROGRAM = """
import sys
import time
import torch
import sbp2p

home, peer, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
model = torch.nn.Linear(3, 2)
torch.nn.init.constant_(model.weight, 3.0)
torch.nn.init.constant_(model.bias, 3.0)
try:
    with sbp2p.background("digits", home=home, peers=[peer]) as swarm:
        swarm.wait_for_peers(1, timeout_s=60)
        for _ in range(rounds):
            swarm.step(model)
        print(model.bias[0].item(), flush=True)
        swarm.step(model)  # the other one does not: until Ctrl-C
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
    raise
"""


def start(*words: Any) -> subprocess.Popen[str]:
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "protocol", ROOT / "keys")))
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


@pytest.mark.e2e
def test_two_processes_train_and_ctrl_c_ends_one_within_a_second(tmp_path: Path) -> None:
    model = linear(1.0)
    with sbp2p.background("digits", home=tmp_path / "alice", listen=LOOPBACK) as alice:
        with start(tmp_path / "bob", alice.addresses[0], 1) as process:
            try:
                alice.wait_for_peers(1, timeout_s=WAIT_S)
                result: StepResult = alice.step(model)
                assert result.round is not None
                assert value(model) == 2.0
                assert process.stdout is not None
                assert process.stdout.readline() == "2.0\n"
                begun = time.monotonic()
                process.send_signal(signal.SIGINT)
                output, problems = process.communicate(timeout=WAIT_S)
            finally:
                process.kill()
        # both clocks count since the machine started
        assert float(output) - begun < SLACK_S
        assert problems.splitlines()[-1] == "KeyboardInterrupt"
        assert process.returncode == -signal.SIGINT
