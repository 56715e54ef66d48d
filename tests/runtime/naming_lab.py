"""Nodes for the tests of naming: the exchange's lab, with a DHT over it and naming over both."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import trio

from sbp2p.calls import InlineCalls
from sbp2p.config import DhtConfig, NamingConfig
from sbp2p.dht import DhtRecords, open_dht
from sbp2p.naming import Pointers, open_naming
from tests.runtime.exchange_lab import PUBLISHER, Lab, LabNode, open_lab

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio_typing import TaskStatus

    from sbp2p.dht import Dht
    from sbp2p.naming import Naming
    from sbp2p_keys.identity import PrivateKey

EPOCH = 1_800_000_000.0
"""Unix time at the beginning of each test."""

CONFIG = NamingConfig(retry_s=5.0)


@dataclass
class Host:
    """What a node runs in, so that it can be taken down alone."""

    node: LabNode
    dht: Dht
    naming: Naming
    pointers: Pointers
    records: DhtRecords
    _stop: trio.CancelScope = field(default_factory=trio.CancelScope)
    _stopped: trio.Event = field(default_factory=trio.Event)

    async def stop(self) -> None:
        """Leave, as a process that is ended does."""
        self._stop.cancel()
        await self._stopped.wait()

    async def wait_stopped(self) -> None:
        """Wait until it has left."""
        await self._stopped.wait()


class NamingLab:
    """Makes hosts; the first one is where the others begin."""

    def __init__(self, lab: Lab, nursery: trio.Nursery) -> None:
        self.lab = lab
        self.hosts: list[Host] = []
        self._nursery = nursery
        self.clock_offset = 0.0

    def now(self) -> float:
        """Unix time on every host."""
        return EPOCH + self.clock_offset + trio.current_time()

    async def host(
        self,
        *,
        signer: PrivateKey | None = None,
        pointers: Path | None = None,
        join: bool = True,
        node: LabNode | None = None,
        **options: Any,
    ) -> Host:
        """Start a host.

        Args:
            signer: the key that it publishes under.
            pointers: the file of what it remembers; in memory if None.
            join: whether it is told of the first host.
            node: a node whose host was stopped; a new one if None.
            options: of NamingConfig.
        """
        node = node or await self.lab.node()
        started: Host = await self._nursery.start(self._run, node, signer, pointers, options)
        if join and self.hosts:
            first = self.hosts[0].node
            await node.swarm.connect(first.addresses, first.key.peer_id)
            await started.dht.bootstrap(first.addresses)
        self.hosts.append(started)
        return started

    async def _run(
        self,
        node: LabNode,
        signer: PrivateKey | None,
        pointers: Path | None,
        options: dict[str, Any],
        *,
        task_status: TaskStatus[Host],
    ) -> None:
        async with AsyncExitStack() as stack:
            memory = stack.enter_context(Pointers(pointers))
            records = DhtRecords(None)
            dht = await stack.enter_async_context(
                open_dht(
                    node.swarm,
                    records,
                    DhtConfig(),
                    rng=random.Random(1),  # noqa: S311
                    wall_clock=self.now,
                )
            )
            naming = await stack.enter_async_context(
                open_naming(
                    swarm=node.swarm,
                    exchange=node.exchange,
                    store=node.store,
                    pointers=memory,
                    config=replace(CONFIG, **options),
                    wall_clock=self.now,
                    dht=dht,
                    signer=signer,
                    calls=InlineCalls(),
                    rng=random.Random(1),  # noqa: S311
                )
            )
            host = Host(node, dht, naming, memory, records)
            with host._stop:
                task_status.started(host)
                await trio.sleep_forever()
        host._stopped.set()

    async def servers(self, count: int) -> None:
        """Start hosts that publish nothing."""
        for _ in range(count):
            await self.host()


@asynccontextmanager
async def open_naming_lab(folder: Path) -> AsyncIterator[NamingLab]:
    """Yield a lab whose hosts end with it."""
    async with trio.open_nursery() as nursery, open_lab(folder) as lab:
        naming = NamingLab(lab, nursery)
        yield naming
        for host in naming.hosts:
            await host.stop()


__all__ = ["CONFIG", "EPOCH", "PUBLISHER", "Host", "NamingLab", "open_naming_lab"]
