"""Rounds between real nodes over TCP, with models of frameworks."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import trio

import sbp2p
from sbp2p.config import DhtConfig, DiscoveryConfig, NodeConfig

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p.namespace import Namespace

torch = pytest.importorskip("torch")

ALONE = NodeConfig(dht=DhtConfig(enabled=False), discovery=DiscoveryConfig(enabled=False))


def module(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 3).bfloat16()
    )


async def enter(stack: AsyncExitStack, home: Path, **options: Any) -> Namespace:
    node = sbp2p.Node(home=home, listen=["/ip4/127.0.0.1/tcp/0"], config=ALONE)
    opened = await stack.enter_async_context(node)
    namespace = await stack.enter_async_context(opened.namespace("net", **options))
    enter_addresses.append(opened.addresses[0].text)
    return namespace


enter_addresses: list[str] = []


@pytest.mark.parametrize("codec", ["lossless", "int8"])
async def test_real_nodes_end_with_the_same_bits(tmp_path: Path, codec: str) -> None:
    enter_addresses.clear()
    async with AsyncExitStack() as stack:
        namespaces = [await enter(stack, tmp_path / "0", codec=codec)]
        peers = [enter_addresses[0]]
        for number in (1, 2):
            home = tmp_path / str(number)
            namespaces.append(await enter(stack, home, peers=peers, codec=codec))
        models = [module(number) for number in range(3)]
        for namespace in namespaces:
            await namespace.wait_for_peers(2, timeout_s=30)
        for _ in range(2):

            async def one(index: int) -> None:
                await namespaces[index].publish(models[index], samples=10 + index)
                result = await namespaces[index].merge(models[index], deadline_s=20.0)
                assert len(result.merged) == 3, result
                assert result.bytes_received > 0

            async with trio.open_nursery() as nursery:
                for index in range(3):
                    nursery.start_soon(one, index)
            states = [model.state_dict() for model in models]
            for name, value in states[0].items():
                assert all(torch.equal(value, state[name]) for state in states[1:]), name
            for number, model in enumerate(models):
                with torch.no_grad():
                    next(iter(model.parameters())).add_(0.01 * number)
