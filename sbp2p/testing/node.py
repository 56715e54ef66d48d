"""A node of a virtual network: the real one, with ways to end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from sbp2p.node.node import Node

from .hosts import PORT, tcp_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .hosts import Host
    from .network import VirtualNetwork


@dataclass(frozen=True, slots=True)
class WireBytes:
    """What passed over the lines of a host, every overhead included."""

    up: int
    down: int


class VirtualNode(Node):
    """A node that lives in the network's nursery, until it leaves, is killed, or the network ends.

    What a scenario has it do goes through `start_soon` or `within`, so that it ends with the node.
    """

    def __init__(self, network: VirtualNetwork, host: Host, *, lives: int, **options: Any) -> None:
        super().__init__(**options)
        self.name = host.name
        self.host = host
        self.lives = lives
        """How many nodes of this name there have been, this one included."""
        self._network = network
        self._address = tcp_address(host.own_ip, PORT).with_peer(options["identity"].peer_id)
        self._scope = trio.CancelScope()
        self._leaving = trio.Event()
        self._ended = trio.Event()
        self._tasks: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<VirtualNode {self.name}>"

    @property
    def is_running(self) -> bool:
        """Whether it has started, and nobody has begun to end it."""
        over = self._leaving.is_set() or self._scope.cancel_called or self._ended.is_set()
        return self._tasks is not None and not over

    @property
    def wire(self) -> WireBytes:
        """The bytes of its host so far, of all nodes of this name."""
        return WireBytes(self.host.uplink.bytes_served, self.host.downlink.bytes_served)

    @property
    def address(self) -> str:
        """Where others dial it, with its peer id; also while it is gone."""
        return self._address.text

    # -- its life ---------------------------------------------------------------------------------

    async def live(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Be open until told to end. The network runs it."""
        try:
            with self._scope:
                async with self:
                    await self._serve(task_status)
        finally:
            self._network.trace("end", self.host)
            self._ended.set()

    async def _serve(self, task_status: Any) -> None:
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            task_status.started()
            await self._leaving.wait()
            nursery.cancel_scope.cancel()

    async def leave(self) -> None:
        """End in good order, with goodbyes, and wait for it."""
        self._leaving.set()
        await self._ended.wait()

    async def kill(self, *, silently: bool = False) -> None:
        """End at once.

        Peers see their connections reset, as when a process dies; or, `silently`, nothing at all,
        as when a machine does. What was committed to disk is there when the name comes back, and
        as the tasks are cancelled, so is what a cancelled fetch commits.
        """
        if silently:
            self._network.vanish(self.host)
        else:
            self._network.trace("kill", self.host)
            for link in self._network.links_of(self.host):
                link.abort(link.hosts.index(self.host))
        self._scope.cancel()
        await self._ended.wait()

    # -- its tasks --------------------------------------------------------------------------------

    def start_soon(self, task: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Run a task that ends with the node; what it raises ends the whole run."""
        if self._tasks is None:
            raise RuntimeError(f"node {self.name} has not started")
        self._tasks.start_soon(task, *arguments)

    async def wait_ended(self) -> None:
        """Wait until the node is gone."""
        await self._ended.wait()
