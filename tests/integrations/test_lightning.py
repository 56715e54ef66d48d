"""Lightning's Trainer, the real one, trains with peers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import sbp2p
from sbp2p.errors import ConfigError, PeerUnreachableError
from tests.runtime.training_pair import LOOPBACK, WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
]


@pytest.fixture(scope="module")
def parts() -> Any:
    """What is imported late, because it takes long and warns."""
    from lightning.pytorch import LightningModule, Trainer

    from sbp2p.integrations import lightning

    class Net(LightningModule):  # type: ignore[misc]
        """A layer and batch norm: parameters, and buffers that count."""

        def __init__(self, seed: int, fails: bool = False) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.layer = torch.nn.Linear(4, 2)
            self.norm = torch.nn.BatchNorm1d(2)
            self.fails = fails
            self.losses: list[float] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            if self.fails:
                raise RuntimeError("of the user")
            inputs, targets = batch
            loss = torch.nn.functional.mse_loss(self.norm(self.layer(inputs)), targets)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    def fit(model: Any, seed: int, callback: Any, epochs: int = 2) -> None:
        random = torch.Generator().manual_seed(seed)
        rows = torch.randn(30, 4, generator=random), torch.randn(30, 2, generator=random)
        Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
        ).fit(model, DataLoader(TensorDataset(*rows), batch_size=8))

    return SimpleNamespace(Net=Net, fit=fit, module=lightning)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_two_trainers_end_with_the_same_model(
    tmp_path: Path, parts: Any, pool: ThreadPoolExecutor
) -> None:
    ours, theirs = parts.Net(1), parts.Net(2)
    with sbp2p.background("digits", home=tmp_path / "a", listen=LOOPBACK) as alice:
        bob = sbp2p.background("digits", home=tmp_path / "b", peers=alice.addresses)
        first, second = (
            parts.module.Sbp2pCallback(swarm, every_steps=3, peers_min=1) for swarm in (alice, bob)
        )
        other = pool.submit(parts.fit, theirs, 2, second)
        parts.fit(ours, 1, first)
        other.result(WAIT_S)
        assert alice.is_open, "it was open before"
        assert not bob.is_open, "it was opened by the callback"
        # 4 batches an epoch: 8 + 8 + 8, then 6 + 8 + 8, then what is left at the end
        samples = [[each.samples for each in result.merged] for result in alice.history]
        assert samples == [[24, 24], [22, 22], [14, 14]]
        assert same(ours, theirs)
        assert len(ours.losses) == 8, "training went on after each merge"
        newcomer = parts.Net(3)
        callback = parts.module.Sbp2pCallback(
            sbp2p.background("digits", home=tmp_path / "c", peers=alice.addresses),
            every_epochs=5,
            bootstrap=True,
            only=["layer.*"],
        )
        with pytest.raises(sbp2p.Sbp2pError):  # others share more than that
            parts.fit(newcomer, 3, callback)


def same(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_a_newcomer_begins_with_the_others_model_and_optimizer(tmp_path: Path, parts: Any) -> None:
    donor = parts.Net(1)
    optimizer = donor.configure_optimizers()
    donor.layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    newcomer = parts.Net(2)
    with sbp2p.background("digits", home=tmp_path / "a", listen=LOOPBACK) as alice:
        alice.step(sbp2p.wrap(donor, optimizer=optimizer), wait_s=0)
        swarm = sbp2p.background("digits", home=tmp_path / "b", peers=alice.addresses)
        callback = parts.module.Sbp2pCallback(
            swarm, every_epochs=1, wait_s=0, bootstrap=True, optimizer=True
        )
        own = newcomer.configure_optimizers()
        callback.on_train_start(SimpleNamespace(optimizers=[own]), newcomer)
        assert same(newcomer, donor)
        assert own.state[newcomer.layer.bias]["step"] == 1
        callback.teardown(None, newcomer, "fit")
        assert not swarm.is_open


def test_a_node_ends_with_a_training_that_fails(tmp_path: Path, parts: Any) -> None:
    swarm = sbp2p.background("digits", home=tmp_path)
    with pytest.raises(RuntimeError, match="of the user"):
        parts.fit(parts.Net(1, fails=True), 1, parts.module.Sbp2pCallback(swarm, every_epochs=1))
    assert not swarm.is_open
    lonely = sbp2p.background("digits", home=tmp_path)
    callback = parts.module.Sbp2pCallback(lonely, every_epochs=1, peers_min=1, timeout_s=0.05)
    with pytest.raises(PeerUnreachableError):
        parts.fit(parts.Net(1), 1, callback)
    assert not lonely.is_open
    assert not [each for each in threading.enumerate() if each.name.startswith("sbp2p")]


def test_what_cannot_be_is_said_at_once(tmp_path: Path, parts: Any) -> None:
    swarm = sbp2p.background("digits", home=tmp_path)
    with pytest.raises(ValueError, match="say when to merge"):
        parts.module.Sbp2pCallback(swarm)
    with pytest.raises(ValueError, match="at least 1"):
        parts.module.Sbp2pCallback(swarm, every_steps=0)
    callback = parts.module.Sbp2pCallback(swarm, every_steps=1, optimizer=True)
    with pytest.raises(ConfigError, match="not one optimizer in one process"):
        callback.on_train_start(SimpleNamespace(optimizers=[]), parts.Net(1))


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        ([torch.zeros(4, 2), torch.zeros(4)], 4),
        ({"ids": torch.zeros(3), "names": ["a"]}, 3),
        ({"names": "x", "nested": (torch.zeros(2),)}, 2),
        (torch.zeros(()), 1),
        ("text", 1),
    ],
)
def test_samples_are_the_first_dimension_of_a_batch(parts: Any, batch: Any, samples: int) -> None:
    assert parts.module.samples_in(batch) == samples
