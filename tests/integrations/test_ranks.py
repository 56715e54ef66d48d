"""A trainer of two processes: rank 0 has the node, and both have its weights afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import sbp2p
from sbp2p.errors import ConfigError, MergeError, Sbp2pError
from sbp2p.integrations import ranks
from sbp2p.integrations.steps import PeerSteps

torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store",
    rank=rank,
    world_size=2,
    timeout=timedelta(seconds=60),
)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("coarse", torch.full((3,), 0.1 + rank, dtype=torch.bfloat16))
        self.register_buffer("flags", torch.tensor([True, rank == 0]))
        self.register_buffer("turned", torch.full((2, 3), 5.0 + rank).t())
        self.register_buffer("count", torch.tensor(rank))
        self.register_buffer("nothing", torch.zeros(0))


def steps_with(swarm, every_steps, **options):
    kinds = dict(
        every_epochs=None, wait_s=None, peers_min=0, bootstrap=False, timeout_s=None,
        optimizer=False, options={},
    )
    return PeerSteps(swarm, every_steps=every_steps, **{**kinds, **options})


torch.manual_seed(0)
first = {name: tensor.clone() for name, tensor in Net().state_dict().items()}
torch.manual_seed(rank)
model = Net()
assert ranks.count() == 2
assert ranks.total(10 + rank, torch.device("cpu")) == 21
swarm = sbp2p.background("ranks", home=f"{folder}/{rank}")
steps = steps_with(swarm, 2)
steps.begin(model, None)
assert swarm.is_open == (rank == 0)
steps.step_ended(1)
assert not swarm.history
steps.count(10)
steps.step_ended(2)
steps.step_ended(2)
assert len(swarm.history) == (1 if rank == 0 else 0)
if rank == 1:
    first.update(coarse=torch.full((3,), 0.1, dtype=torch.bfloat16), count=torch.tensor(0))
    first.update(flags=torch.tensor([True, True]), turned=torch.full((3, 2), 5.0))
for name, tensor in model.state_dict().items():
    assert torch.equal(tensor, first[name]), (name, tensor, first[name])
steps.count(1)
steps.finish()
steps.finish()
assert len(swarm.history) == (2 if rank == 0 else 0)
steps.close()
assert not swarm.is_open

failing = steps_with(sbp2p.background("ranks", home=f"{folder}/{rank}", method="no-such"), 1)
failing.begin(model, None)
try:
    failing.step_ended(1)
except Sbp2pError as error:
    assert isinstance(error, MergeError) == (rank == 0)
    assert ("rank 0 failed" in str(error)) == (rank == 1)
    print("told")
failing.close()
try:
    steps_with(swarm, 1, optimizer=True).begin(model, torch.optim.Adam(model.parameters()))
except ConfigError:
    print("refused")
dist.destroy_process_group()
"""


@pytest.mark.e2e
def test_rank_0_talks_to_peers_and_every_rank_has_its_weights(tmp_path: Path) -> None:
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "protocol", ROOT / "keys")))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in (0, 1)
    ]
    try:
        for process in processes:
            output, problems = process.communicate(timeout=120)
            assert process.returncode == 0, problems
            assert output == "told\nrefused\n"
    finally:
        for process in processes:
            process.kill()
            process.communicate()
