"""What every child process of an example does besides its own work.

A child is given its settings as JSON in its one argument, tells what happens as JSON lines, and
ends when its standard input does: see `processes`. A line there lets it go on where it waits. Nodes
meet at the addresses they are given, on loopback: no multicast, no DHT, no names.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import trio

import sbp2p
from sbp2p.config import DhtConfig, DiscoveryConfig, NamingConfig
from sbp2p.exchange.unwrap import unwrapped_errors
from sbp2p_keys.identity import PrivateKey

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
_ABANDON: Final[dict[str, Any]] = {"abandon_on_cancel": True}
"""A name that the stubs of trio do not know; the thread ends with the process."""


def tell(event: str, **facts: Any) -> None:
    """Tell the parent something."""
    print(json.dumps({"event": event, **facts}), flush=True)


def key_of(identity: str) -> PrivateKey:
    """Return a key that depends on a text alone: for examples, never for a real node."""
    return PrivateKey.from_seed(blake2b(identity.encode(), digest_size=32).digest())


def open_node(home: Path | str, identity: str) -> sbp2p.Node:
    """Return a node that listens on a free port of loopback and looks for nobody by itself."""
    config = sbp2p.NodeConfig(
        discovery=DiscoveryConfig(enabled=False),
        dht=DhtConfig(enabled=False),
        naming=NamingConfig(publish=False),
    )
    return sbp2p.Node(home=home, listen=[LOOPBACK], identity=key_of(identity), config=config)


def wire_bytes(node: sbp2p.Node) -> dict[str, int]:
    """Return what the node's connections have carried so far, handshakes and all."""
    statistics = node.statistics()
    return {"sent": statistics.bytes_sent, "received": statistics.bytes_received}


Work = Callable[[Mapping[str, Any], trio.Event], Awaitable[None]]
"""What a child does: given its settings, and what is set once the parent says to go on."""


def run_child(live: Work, *, threads: int = 1) -> None:
    """Run a child's work with its settings, not longer than the parent lives.

    Ctrl-C is the parent's to handle. `limit_s` in the settings, if it is there, bounds the work.

    Args:
        live: the work; it may wait for ever once it is through.
        threads: of torch.
    """
    import torch

    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings: dict[str, Any] = json.loads(sys.argv[1])
    try:
        trio.run(_run, live, settings)
    except sbp2p.Sbp2pError as error:
        raise SystemExit(f"{error}; {error.hint}") from error


async def _run(live: Work, settings: Mapping[str, Any]) -> None:
    go = trio.Event()
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:

            async def listen_to_parent() -> None:
                while await trio.to_thread.run_sync(sys.stdin.readline, **_ABANDON):
                    go.set()
                nursery.cancel_scope.cancel()

            nursery.start_soon(listen_to_parent)
            with trio.fail_after(settings.get("limit_s", 600.0)):
                await live(settings, go)
