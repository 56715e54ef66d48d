"""A network to test nodes on: real nodes, virtual time, every run repeated by its seed.

    async def main(network: VirtualNetwork) -> None:
        sample = make_sample(network.random("model"), blocks=32, block_bytes=64 * 1024)
        seed = await network.add_node("seed", up=5e6, down=5e6)
        leech = await network.add_node("leech", up=5e6, down=5e6)
        await seed.fetch(...)

    run_virtual(main, seed=7)

| module | what |
|---|---|
| `run` | the virtual clock, and what makes a run repeat itself |
| `network` | hosts, latencies, partitions, resets |
| `node` | a node that can be killed |
| `hosts` | addresses, listeners, dialling |
| `link`, `pipe`, `shaper` | connections, buffers and windows, shared lines |
| `timeline` | what happens when |
| `samples` | versions to share |
| `kad_network` | thousands of DHT nodes, without connections |

See docs/virtual-network.md.
"""

from __future__ import annotations

from .hosts import PORT as PORT
from .hosts import Host as Host
from .hosts import VirtualTransport as VirtualTransport
from .network import EPOCH as EPOCH
from .network import VirtualNetwork as VirtualNetwork
from .node import VirtualNode as VirtualNode
from .node import WireBytes as WireBytes
from .run import chosen_seeds as chosen_seeds
from .run import run_virtual as run_virtual
from .samples import Sample as Sample
from .samples import make_sample as make_sample
