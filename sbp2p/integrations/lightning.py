"""A Lightning callback: the module trains with its peers.

    swarm = sbp2p.background("digits", peers=[...])
    trainer = lightning.Trainer(callbacks=[Sbp2pCallback(swarm, every_steps=100)])

Under DistributedDataParallel rank 0 has the node, and every rank gets the merged weights.
Strategies that shard the weights cannot take part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import Callback

from .steps import PeerSteps

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from sbp2p.training import Background


class Sbp2pCallback(Callback):  # type: ignore[misc]
    """Publishes and merges the module every so many optimizer steps or epochs.

    Args:
        swarm: what `sbp2p.background` returned. One that is not open is opened when training
            begins and closed when it ends, whatever ends it.
        every_steps: optimizer steps between two rounds.
        every_epochs: epochs between two rounds.
        wait_s: how long a round may hold up the training: None for until it ends, 0 for not at all.
        peers_min: how many other members to wait for before training begins.
        bootstrap: begin with the model that the others have.
        timeout_s: of both.
        optimizer: share the optimizer's state, too; for one optimizer in one process.
        options: which tensors: `only`, `exclude`, `frozen`, as `sbp2p.wrap` takes them.

    Raises:
        ValueError: neither steps nor epochs are given.
    """

    def __init__(
        self,
        swarm: Background,
        *,
        every_steps: int | None = None,
        every_epochs: int | None = None,
        wait_s: float | None = None,
        peers_min: int = 0,
        bootstrap: bool = False,
        timeout_s: float | None = 60.0,
        optimizer: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.swarm = swarm
        self._steps = PeerSteps(
            swarm,
            every_steps=every_steps,
            every_epochs=every_epochs,
            wait_s=wait_s,
            peers_min=peers_min,
            bootstrap=bootstrap,
            timeout_s=timeout_s,
            optimizer=optimizer,
            options=options,
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the node; the module is on its device, and its optimizers are made."""
        optimizers = trainer.optimizers
        self._steps.begin(pl_module, optimizers[0] if len(optimizers) == 1 else None)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch; step with the peers when it is time."""
        self._steps.count(samples_in(batch))
        self._steps.step_ended(trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Step with the peers when it is time."""
        self._steps.epoch_ended(trainer.current_epoch + 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Share what was trained last."""
        self._steps.finish()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the node: training does not go on."""
        self._steps.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the node."""
        self._steps.close()


def samples_in(batch: Any) -> int:
    """Return how many samples a batch has: the first dimension of its first tensor, else 1."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    parts = batch.values() if isinstance(batch, dict) else batch
    if isinstance(batch, (dict, list, tuple)):
        for part in parts:
            if isinstance(part, (torch.Tensor, dict, list, tuple)):
                return samples_in(part)
    return 1
