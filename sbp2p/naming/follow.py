"""Each new version of a name, as it appears.

Theory of operation. A `Following` is asked for the next version (`async for`), and only then does
anything run: two loops beside each other, of which the first to hear of a higher number ends both.

    asks        connected peers, and those of the link, every `follow_ask_s`: in a swarm a new
                version is known within seconds
    looks up    the publisher's pointer, when its TTL has passed

Waits are spread by chance. What is refused or fails is waited out, and told to `trouble`; numbers
only grow, also across restarts (pointers.py).

Error cases: StoreError; nothing else ends it. A cancellation leaves everything as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import trio

from sbp2p.errors import Sbp2pError, StoreError
from sbp2p.exchange.unwrap import unwrapped_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from sbp2p.config import NamingConfig
    from sbp2p.exchange import Source
    from sbp2p_protocol.link import NameLink

    from .resolve import Resolver
    from .values import ResolvedName


class Following:
    """An endless async iterator over the versions of one name; one task at a time may use it.

    Args:
        resolver: tells what the name stands for.
        link: the name, without a version.
        sources: peers of the link.
        after: only versions with higher numbers are told.
        config: knobs.
        rng: spreads waits.
        trouble: called with what went wrong, each time, while there is nothing new.
    """

    def __init__(
        self,
        resolver: Resolver,
        link: NameLink,
        sources: tuple[Source, ...],
        *,
        after: int,
        config: NamingConfig,
        rng: Random,
        trouble: Callable[[Sbp2pError], None] | None,
    ) -> None:
        self.version = after
        """The last number that was told."""
        self._resolver = resolver
        self._link = link
        self._sources = sources
        self._config = config
        self._rng = rng
        self._trouble = trouble
        self._lookup_at = 0.0
        """When the pointer is to be looked up again."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ResolvedName:
        """Wait for a version with a higher number than the last one."""
        found: list[ResolvedName] = []
        with unwrapped_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_asking, found, nursery.cancel_scope)
                nursery.start_soon(self._keep_looking, found, nursery.cancel_scope)
        newest = max(found, key=lambda each: each.version)
        self.version = newest.version
        return newest

    async def _keep_asking(self, found: list[ResolvedName], done: trio.CancelScope) -> None:
        while True:
            await self._try(found, done, lookup=False)
            await trio.sleep(self._about(self._config.follow_ask_s))

    async def _keep_looking(self, found: list[ResolvedName], done: trio.CancelScope) -> None:
        while True:
            await trio.sleep_until(self._lookup_at)
            ttl_s = await self._try(found, done, lookup=True)
            config = self._config
            wait = min(max(ttl_s, config.follow_lookup_min_s), config.follow_lookup_max_s)
            self._lookup_at = trio.current_time() + self._about(wait)

    async def _try(
        self, found: list[ResolvedName], done: trio.CancelScope, *, lookup: bool
    ) -> float:
        """Resolve once; return for how long the pointer is good."""
        link = self._link
        try:
            resolved = await self._resolver.resolve(
                link.publisher, link.name, sources=self._sources, lookup=lookup, ask=not lookup
            )
        except StoreError:
            raise
        except Sbp2pError as error:
            if self._trouble is not None:
                self._trouble(error)
            return 0.0
        if resolved.version > self.version:
            found.append(resolved)
            done.cancel()
        return resolved.ttl_s

    def _about(self, seconds: float) -> float:
        return seconds * self._rng.uniform(1 - self._config.jitter, 1 + self._config.jitter)
