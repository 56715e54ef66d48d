"""Names of one node: what its key publishes, what others' names stand for, and what comes next."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from sbp2p.calls import ThreadCalls
from sbp2p.errors import ConfigError
from sbp2p.exchange import Source

from .follow import Following
from .mirror import Mirror
from .publish import Publisher
from .quiet import QuietVersions
from .resolve import Resolver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from sbp2p.calls import Calls
    from sbp2p.config import NamingConfig
    from sbp2p.dht import Dht
    from sbp2p.errors import Sbp2pError
    from sbp2p.exchange import Exchange
    from sbp2p.store import Store
    from sbp2p.swarm import Swarm
    from sbp2p_keys.identity import PeerId, PrivateKey
    from sbp2p_protocol.link import NameLink

    from .pointers import Evidence, Pointers
    from .values import PublishedCatalog, ResolvedName


class Naming:
    """Made by `open_naming`.

    Args:
        publisher: what this node's key publishes; None if it publishes nothing.
        mirror: what it keeps alive of others' names; None if nothing.
        resolver: what names stand for.
        pointers: what is remembered.
        config: knobs.
        calls: where blocking calls run.
        rng: spreads load.
    """

    def __init__(
        self,
        publisher: Publisher | None,
        mirror: Mirror | None,
        resolver: Resolver,
        pointers: Pointers,
        config: NamingConfig,
        calls: Calls,
        rng: random.Random,
    ) -> None:
        self._publisher = publisher
        self._mirror = mirror
        self._resolver = resolver
        self._pointers = pointers
        self._config = config
        self._calls = calls
        self._rng = rng

    # -- publishing -------------------------------------------------------------------------------

    async def publish(self) -> PublishedCatalog | None:
        """Publish everything that this node's key has signed; None if there is nothing.

        It happens by itself, soon after there is something new and every few hours again.

        Raises:
            StoreError: it could not be written down, so nothing was told to anybody.
            ConfigError: this node does not publish, or has too many models for one catalog.
        """
        if self._publisher is None:
            raise ConfigError("this node does not publish names: its settings say so")
        return await self._publisher.publish()

    def changed(self) -> None:
        """Note that the store has something new, so that it is published, or mirrored, now."""
        if self._publisher is not None:
            self._publisher.changed()
        if self._mirror is not None:
            self._mirror.changed()

    # -- resolving --------------------------------------------------------------------------------

    async def resolve(
        self,
        publisher: PeerId,
        name: str,
        version: int | None = None,
        *,
        sources: Iterable[Source] = (),
    ) -> ResolvedName:
        """Return what a publisher's name stands for, with nothing but the peer id known.

        Args:
            publisher: whose name it is.
            name: of the model.
            version: a number, for exactly that version; the newest if None.
            sources: peers to ask beside those that are connected.

        Raises:
            NotFoundError: nothing that is valid now says what it stands for.
            PeerUnreachableError: nobody could be asked.
            PeerMisbehavedError: the name points to what is no catalog.
            StoreError: what is remembered cannot be read or written.
        """
        return await self._resolver.resolve(publisher, name, version, sources=sources)

    def follow(
        self,
        link: NameLink,
        *,
        sources: Iterable[Source] = (),
        after: int = 0,
        trouble: Callable[[Sbp2pError], None] | None = None,
    ) -> Following:
        """Return an endless async iterator over the versions of a name, the newest first.

        Args:
            link: the name, without a version; the peers that it names are asked, too.
            sources: more peers to ask.
            after: tell only of versions with higher numbers.
            trouble: told of what goes wrong while there is nothing new.

        Raises:
            ConfigError: the link names one version, which stays as it is.
        """
        if link.version is not None:
            raise ConfigError(
                "this link names one version, and that never changes",
                hint="follow a link of the form sbp2p://PEER/NAME",
            )
        return Following(
            self._resolver,
            link,
            (*sources, *sources_of(link)),
            after=after,
            config=self._config,
            rng=self._rng,
            trouble=trouble,
        )

    async def evidence(self, publisher: PeerId | None = None) -> list[Evidence]:
        """Return the contradictions that publishers, or one of them, have signed."""
        return await self._calls.run_to_end(self._pointers.evidence, publisher)


def sources_of(link: NameLink) -> list[Source]:
    """Return the peers that a link names."""
    return [
        Source(address.peer_id, (address,)) for address in link.peers if address.peer_id is not None
    ]


@asynccontextmanager
async def open_naming(
    *,
    swarm: Swarm,
    exchange: Exchange,
    store: Store,
    pointers: Pointers,
    config: NamingConfig,
    wall_clock: Callable[[], float],
    dht: Dht | None = None,
    signer: PrivateKey | None = None,
    calls: Calls | None = None,
    rng: random.Random | None = None,
    quiet: QuietVersions | None = None,
) -> AsyncIterator[Naming]:
    """Resolve names, and publish those of `signer`, as long as the `async with` block lasts.

    Args:
        swarm: whose connected peers are asked.
        exchange: which asks them, and serves the catalog.
        store: whose versions are published, and where the catalog lies.
        pointers: what is remembered.
        config: knobs.
        wall_clock: Unix time in seconds.
        dht: where pointers are looked up and put; None to do without.
        signer: the key whose versions are published; None to publish nothing.
        calls: where blocking calls run.
        rng: spreads load.
        quiet: which versions are told of nowhere.
    """
    calls = calls or ThreadCalls()
    quiet = quiet or QuietVersions()
    resolver = Resolver(
        swarm=swarm,
        exchange=exchange,
        dht=dht,
        pointers=pointers,
        config=config,
        calls=calls,
        wall_clock=wall_clock,
    )
    publisher = None
    if signer is not None and config.publish:
        publisher = Publisher(
            signer=signer,
            store=store,
            dht=dht,
            resolver=resolver,
            pointers=pointers,
            config=config,
            calls=calls,
            wall_clock=wall_clock,
            quiet=quiet,
        )
    mirror = None
    if dht is not None and config.publish:
        mirror = Mirror(
            own=None if publisher is None else publisher.publisher,
            resolver=resolver,
            store=store,
            dht=dht,
            pointers=pointers,
            config=config,
            calls=calls,
            wall_clock=wall_clock,
            quiet=quiet,
        )
    dice = rng or random.Random()  # noqa: S311  # spreads load, guards nothing
    naming = Naming(publisher, mirror, resolver, pointers, config, calls, dice)
    try:
        async with trio.open_nursery() as nursery:
            if publisher is not None:
                nursery.start_soon(publisher.run)
            if mirror is not None:
                nursery.start_soon(mirror.run)
            try:
                yield naming
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # the task raises nothing, so what the block raised is alone in here
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
