"""The parts of a node, opened in the order in which they build on each other.

    store -> swarm -> exchange -> discovery -> DHT -> naming, announcing

Theory of operation: each is an `async with` of its own on one stack, so they end in the opposite
order, and nothing of one runs on when those below are gone. Only the process that runs as the
home's identity keeps what its DHT and its discovery learn: another one beside it is a guest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p.dht import DhtRecords, open_dht
from sbp2p.dht.records import database_name
from sbp2p.discovery import Reachability, open_discovery
from sbp2p.exchange import Exchange
from sbp2p.naming import DATABASE_NAME as POINTERS_NAME
from sbp2p.naming import Pointers, open_naming
from sbp2p.naming.quiet import QuietVersions
from sbp2p.perf import serve_perf
from sbp2p.ping import serve_ping
from sbp2p.store import Store
from sbp2p.swarm import open_swarm

from .announcing import Announcing
from .finding_peers import PeerFinder

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack
    from pathlib import Path

    from sbp2p.config import NodeConfig
    from sbp2p.dht import Dht
    from sbp2p.discovery import Discovery
    from sbp2p.naming import Naming
    from sbp2p.swarm import Gate, Swarm
    from sbp2p_keys.identity import PrivateKey

    from .environment import Environment
    from .private_swarm import PrivateSwarm

_REACHABLE: Final = {
    Reachability.REACHABLE: True,
    Reachability.UNREACHABLE: False,
    Reachability.UNKNOWN: None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a node is made of while it is open."""

    store: Store
    swarm: Swarm
    exchange: Exchange
    discovery: Discovery
    dht: Dht | None
    """None when the configuration turns it off."""
    naming: Naming
    finder: PeerFinder
    announcing: Announcing | None
    """None without a DHT to announce to."""
    quiet: QuietVersions
    """Which versions neither naming nor announcing tells of."""


async def open_parts(
    stack: AsyncExitStack,
    identity: PrivateKey,
    *,
    signer: PrivateKey,
    home: Path,
    remembers: bool,
    config: NodeConfig,
    gate: Gate,
    environment: Environment,
    private: PrivateSwarm | None = None,
) -> Parts:
    """Open every part on `stack`.

    Args:
        stack: what ends them.
        identity: who the node is to its peers.
        signer: whose versions are put under their name, if this process may do that.
        home: the folder of the store and of what is remembered.
        remembers: whether this process may write down whom it met; see the module.
        config: knobs.
        gate: who may connect.
        environment: the world around the node.
        private: the private swarm that the node is in; its configuration goes before `config`.

    Raises:
        StoreError: the store cannot be opened.
        ConfigError: a bootstrap address cannot be one.
    """
    config = config if private is None else private.config
    store = stack.enter_context(Store.open(home, config.store))
    swarm = await stack.enter_async_context(
        open_swarm(
            identity,
            config,
            gate=gate,
            membership=None if private is None else private.membership,
            transports=environment.transports,
        )
    )
    serve_ping(swarm)
    if config.serve_perf:
        serve_perf(swarm)
    exchange = Exchange(
        swarm, store, config, threads=environment.exchange_calls, rng=environment.rng
    )
    known = home if private is None else private.memory
    memory = known if remembers else None
    discovery = await stack.enter_async_context(
        open_discovery(
            swarm,
            config.discovery,
            home=known,
            remembers=remembers,
            calls=environment.calls,
            rng=environment.rng,
            wall_clock=environment.wall_clock,
        )
    )
    dht = None
    if config.dht.enabled:
        dht = await _open_dht(stack, swarm, memory, config, environment)
        discovery.on_reachability(_teller(dht))
    quiet = QuietVersions()
    pointers = await environment.calls.run_to_end(Pointers, home / POINTERS_NAME)
    stack.callback(pointers.close)
    naming = await stack.enter_async_context(
        open_naming(
            swarm=swarm,
            exchange=exchange,
            store=store,
            pointers=pointers,
            config=config.naming,
            wall_clock=environment.wall_clock,
            dht=dht,
            signer=signer if remembers else None,
            calls=environment.calls,
            rng=environment.rng,
            quiet=quiet,
        )
    )
    announcing = None
    if dht is not None:
        announcing = Announcing(swarm, store, dht, config.discovery, environment.calls, quiet)
        await stack.enter_async_context(announcing.running())
    return Parts(
        store=store,
        swarm=swarm,
        exchange=exchange,
        discovery=discovery,
        dht=dht,
        naming=naming,
        finder=PeerFinder(swarm, discovery, config.discovery, dht=dht, naming=naming),
        announcing=announcing,
        quiet=quiet,
    )


async def _open_dht(
    stack: AsyncExitStack,
    swarm: Swarm,
    memory: Path | None,
    config: NodeConfig,
    environment: Environment,
) -> Dht:
    records = await environment.calls.run_to_end(
        DhtRecords.open,
        None if memory is None else memory / database_name(config.dht.network),
        environment.wall_clock(),
    )
    stack.callback(records.close)
    return await stack.enter_async_context(
        open_dht(
            swarm,
            records,
            config.dht,
            name=config.dht.network,
            rng=environment.rng,
            wall_clock=environment.wall_clock,
            calls=environment.calls,
        )
    )


def _teller(dht: Dht) -> Callable[[Reachability], None]:
    return lambda reachability: dht.set_reachable(_REACHABLE[reachability])
