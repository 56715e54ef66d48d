"""What every trainer's callback does: count samples, and step with the peers when it is time.

Theory of operation: the trainer's hooks say what happened (a batch, an optimizer step, an epoch);
every `every_steps` steps or `every_epochs` epochs the model takes part in a round. At the end one
more round takes in what was not shared yet, and waits for it. A node that the callback opened it
also closes; one that is open already belongs to who opened it.

Under several processes (`ranks`) the node is opened on rank 0 alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sbp2p.errors import ConfigError
from sbp2p.plugins.torch_module import TorchModule

from . import ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sbp2p.training import Background


class PeerSteps:
    """One trainer's rounds.

    Args:
        swarm: what `sbp2p.background` returned; opened here if it is not yet.
        every_steps: optimizer steps between two rounds; None for none by steps.
        every_epochs: epochs between two rounds; None for none by epochs.
        wait_s: how long a round may hold up the training; see `Background.step`.
        peers_min: how many other members to wait for before training begins.
        bootstrap: begin with the model that the others have.
        timeout_s: of waiting for peers and for the bootstrap.
        optimizer: share the optimizer's state, too.
        options: of `sbp2p.wrap` for a module: `only`, `exclude`, `frozen`.

    Raises:
        ValueError: nothing says when to step, or a number that is not positive.
    """

    def __init__(
        self,
        swarm: Background,
        *,
        every_steps: int | None,
        every_epochs: int | None,
        wait_s: float | None,
        peers_min: int,
        bootstrap: bool,
        timeout_s: float | None,
        optimizer: bool,
        options: Mapping[str, Any],
    ) -> None:
        if every_steps is None and every_epochs is None:
            raise ValueError("say when to merge: every_steps=... or every_epochs=...")
        if any(every is not None and every < 1 for every in (every_steps, every_epochs)):
            raise ValueError("every_steps and every_epochs are at least 1")
        self.swarm = swarm
        self._every_steps, self._every_epochs = every_steps, every_epochs
        self._wait_s, self._timeout_s = wait_s, timeout_s
        self._peers_min, self._bootstrap = peers_min, bootstrap
        self._shares_optimizer, self._options = optimizer, dict(options)
        self._plugin: TorchModule | None = None
        self._device = torch.device("cpu")
        self._samples = 0
        self._step = 0
        self._opened = False

    def begin(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Open the node, wait for peers, and take their model if that was asked for.

        Raises:
            ConfigError: an optimizer's state is to be shared by several processes.
            Sbp2pError: the node cannot be opened, or there are no peers in time.
        """
        if self._shares_optimizer and (optimizer is None or ranks.count() > 1):
            raise ConfigError(
                "the optimizer's state cannot be shared: there is not one optimizer in one process",
                hint="share the model alone: optimizer=False",
            )
        self._plugin = TorchModule(
            module, optimizer=optimizer if self._shares_optimizer else None, **self._options
        )
        first = next(module.parameters(), None)
        self._device = torch.device("cpu") if first is None else first.device
        self._samples = self._step = 0
        try:
            ranks.on_first(self._begin, self._tensors, self._device)
        except BaseException:
            self.close()
            raise

    def _begin(self) -> bool:
        if not self.swarm.is_open:
            self.swarm.__enter__()
            self._opened = True
        if self._peers_min:
            self.swarm.wait_for_peers(self._peers_min, timeout_s=self._timeout_s)
        if self._bootstrap:
            self.swarm.bootstrap(self._plugin, timeout_s=self._timeout_s)
        return self._bootstrap

    def count(self, samples: int) -> None:
        """Take notice of samples that this process trained on."""
        self._samples += samples

    def step_ended(self, number: int) -> None:
        """Take notice that this many optimizer steps were made; step with the peers if it is time.

        May be called several times with one number, as with accumulated gradients.
        """
        if number != self._step and self._every_steps and number % self._every_steps == 0:
            self._take_part(self._wait_s)
        self._step = number

    def epoch_ended(self, number: int) -> None:
        """Take notice that this many epochs have ended; step with the peers if it is time."""
        if self._every_epochs and number % self._every_epochs == 0:
            self._take_part(self._wait_s)

    def finish(self) -> None:
        """End with a round that is waited for, if there is something that was not shared yet."""
        if self._plugin is not None:
            left = ranks.total(self._samples, self._device)
            self._take_part(None, begins=left > 0)

    def close(self) -> None:
        """Close what was opened here; may be called again."""
        self._plugin = None
        if self._opened:
            self._opened = False
            self.swarm.__exit__(None, None, None)

    def _take_part(self, wait_s: float | None, *, begins: bool = True) -> None:
        samples, self._samples = ranks.total(self._samples, self._device), 0

        def work() -> bool:
            if begins:
                result = self.swarm.step(self._plugin, samples=samples, wait_s=wait_s)
            else:
                result = self.swarm.collect(self._plugin, wait_s=wait_s)
            return bool(result.finished)

        ranks.on_first(work, self._tensors, self._device)

    def _tensors(self) -> Iterator[torch.Tensor]:
        if self._plugin is not None:
            yield from self._plugin.live()
