"""A callback for the Hugging Face Trainer: the model trains with its peers.

    with sbp2p.background("support-bot", peers=[...]) as swarm:
        trainer = Trainer(..., callbacks=[Sbp2pTrainerCallback(swarm, every_steps=100)])
        trainer.train()

The Trainer tells its callbacks nothing when training fails, so enter the block around it: then the
node ends in any case. A node that is not open is opened when training begins and closed when it
ends well.

Under DistributedDataParallel rank 0 has the node, and every rank gets the merged weights: there
leave the block away, because the script runs on every rank. Weights that are sharded cannot take
part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from . import ranks
from .steps import PeerSteps

if TYPE_CHECKING:
    import torch
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from sbp2p.training import Background


class Sbp2pTrainerCallback(TrainerCallback):  # type: ignore[misc]
    """Publishes and merges the model every so many optimizer steps or epochs.

    Samples are counted by the size of the batches and of the data set, which the Trainer does not
    tell more exactly.

    Args:
        swarm: what `sbp2p.background` returned.
        every_steps: optimizer steps between two rounds.
        every_epochs: epochs between two rounds.
        wait_s: how long a round may hold up the training: None for until it ends, 0 for not at all.
        peers_min: how many other members to wait for before training begins.
        bootstrap: begin with the model that the others have.
        timeout_s: of both.
        optimizer: share the optimizer's state, too; in one process.
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
        self._in_epoch = 0
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

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Open the node, if it is not open."""
        model: torch.nn.Module = kwargs["model"]
        self._steps.begin(model, kwargs.get("optimizer"))

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Count from the beginning."""
        self._in_epoch = 0

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Count the step's samples; step with the peers when it is time."""
        samples = args.train_batch_size * args.gradient_accumulation_steps
        data: Any = getattr(kwargs.get("train_dataloader"), "dataset", None)
        if hasattr(data, "__len__"):  # the last batch of an epoch may be a smaller one
            samples = min(samples, -(-len(data) // ranks.count()) - self._in_epoch)
        self._in_epoch += samples
        self._steps.count(max(0, samples))
        self._steps.step_ended(state.global_step)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Step with the peers when it is time."""
        self._steps.epoch_ended(round(state.epoch or 0))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Share what was trained last, and end the node if it was opened here."""
        try:
            self._steps.finish()
        finally:
            self._steps.close()

    def close(self) -> None:
        """End the node if it was opened here: for when training failed. May be called again."""
        self._steps.close()
