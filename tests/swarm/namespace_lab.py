"""Nodes that train together over a virtual network, with models that are plugins of bytes."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.config import DhtConfig, DiscoveryConfig, NodeConfig
from sbp2p.plugins.plugin import Snapshot
from sbp2p_protocol.rounds import RoundSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sbp2p.namespace import Namespace, RoundResult
    from sbp2p.testing import VirtualNetwork

ALONE = NodeConfig(dht=DhtConfig(enabled=False), discovery=DiscoveryConfig(enabled=False))
SETTINGS = RoundSettings(deadline_s=20.0)


@asynccontextmanager
async def open_swarm(
    network: VirtualNetwork,
    count: int,
    *,
    config: NodeConfig = ALONE,
    prefix: str = "n",
    **options: object,
) -> AsyncIterator[list[Namespace]]:
    """Nodes in one namespace that know each other."""
    nodes = [await network.add_node(f"{prefix}{number}", config=config) for number in range(count)]
    async with AsyncExitStack() as stack:
        found = []
        for node in nodes:
            context = node.namespace(
                "digits",
                peers=[nodes[0].address],
                **{"rounds": SETTINGS, **options},  # type: ignore[arg-type]
            )
            found.append(await stack.enter_async_context(context))
        for namespace in found:
            await namespace.wait_for_peers(count - 1, timeout_s=60)
        yield found


async def step(
    namespaces: list[Namespace], models: list[Snapshot], **options: object
) -> list[RoundResult]:
    """One round of all at once."""
    results: dict[int, RoundResult] = {}

    async def one(index: int) -> None:
        await namespaces[index].publish(models[index])
        results[index] = await namespaces[index].merge(models[index], **options)  # type: ignore[arg-type]

    async with trio.open_nursery() as nursery:
        for index in range(len(namespaces)):
            nursery.start_soon(one, index)
    return [results[index] for index in range(len(namespaces))]


def floats(values: Sequence[float], name: str = "w") -> RawTensor:
    """Return an F32 tensor."""
    data = struct.pack(f"<{len(values)}f", *values)
    return RawTensor(name, "F32", (len(values),), memoryview(data))


def model(*values: float, **more: Sequence[float]) -> Snapshot:
    """Return a model with one tensor `w`, and others by name."""
    tensors = {"w": floats(values)} | {name: floats(each, name) for name, each in more.items()}
    return Snapshot(tensors)


def values_of(plugin: Snapshot, name: str = "w") -> list[float]:
    """Return the values of a tensor."""
    data = bytes(plugin.tensors()[name].data)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def bits_of(plugin: Snapshot) -> dict[str, bytes]:
    """Return all of a model."""
    return {name: bytes(tensor.data) for name, tensor in plugin.tensors().items()}
