"""Each new version of a name, as it appears.

Theory of operation. A `Following` is asked for the next version (`async for`), and only then does
anything run: two loops beside each other, of which the first to hear of a higher number ends both.

    asks        connected peers, and those of the link, every `follow_ask_s`: in a swarm a new
                version is known within seconds; those that helped before and left are dialled
                again, less and less often
    looks up    the publisher's pointer, when its TTL has passed; sooner while it is not heard of

Waits are spread by chance. What fails is waited out, and told to `trouble` when both ways fail;
numbers only grow, also across restarts (pointers.py).

Error cases: StoreError; nothing else ends it. A cancellation leaves everything as it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import trio

from sbp2p.errors import Sbp2pError, StoreError
from sbp2p.exchange.unwrap import unwrapped_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from sbp2p.config import NamingConfig
    from sbp2p.exchange import Source
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.link import NameLink

    from .resolve import Resolver
    from .values import ResolvedName


_HELPERS_MAX: Final = 8
"""Peers that are dialled again when they have left."""
_HELPER_WAIT_S: Final = 10.0
"""Before the second try; doubles each time."""


@dataclass(slots=True)
class _Helper:
    """A peer that was connected, or had the catalog; it may be gone for a while."""

    source: Source
    dial_at: float
    wait_s: float = _HELPER_WAIT_S


class Following:
    """An endless async iterator over the versions of one name; one task at a time may use it.

    Args:
        resolver: tells what the name stands for.
        link: the name, without a version.
        sources: peers of the link.
        after: only versions with higher numbers are told.
        config: knobs.
        rng: spreads waits.
        trouble: called with what went wrong, each time, while neither way leads anywhere.
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
        self._lookup_at = -math.inf
        """When the pointer is to be looked up again."""
        self._failed: dict[bool, Sbp2pError] = {}
        """What went wrong last, by a lookup (true) and by asking; one alone is no trouble."""
        self._helpers: dict[PeerId, _Helper] = {}
        self._unheard = 0
        """Lookups in a row that did not hear of it."""

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
            resolved = await self._try(found, done, lookup=True)
            self._lookup_at = trio.current_time() + self._about(self._wait_after(resolved))

    def _wait_after(self, resolved: ResolvedName | None) -> float:
        """Return when to look the pointer up again: soon at first, if it was not heard of."""
        config = self._config
        if resolved is None or resolved.age_s != 0:
            self._unheard += 1
            soon = config.follow_ask_s * 2.0 ** min(self._unheard, 16)
            return min(soon, config.follow_lookup_min_s)
        self._unheard = 0
        return min(max(resolved.ttl_s, config.follow_lookup_min_s), config.follow_lookup_max_s)

    async def _try(
        self, found: list[ResolvedName], done: trio.CancelScope, *, lookup: bool
    ) -> ResolvedName | None:
        """Resolve once; return what came of it, if anything."""
        link = self._link
        sources = (*self._sources, *([] if lookup else self._absent_helpers()))
        try:
            resolved = await self._resolver.resolve(
                link.publisher, link.name, sources=sources, lookup=lookup, ask=not lookup
            )
        except StoreError:
            raise
        except Sbp2pError as error:
            self._failed[lookup] = error
            if self._trouble is not None and len(self._failed) == 2:
                self._trouble(error)
            return None
        self._failed.clear()
        self._remember(resolved.sources)
        if resolved.version > self.version:
            found.append(resolved)
            done.cancel()
        return resolved

    def _remember(self, sources: Iterable[Source]) -> None:
        for source in sources:
            if source.addresses and len(self._helpers) < _HELPERS_MAX:
                self._helpers.setdefault(source.peer_id, _Helper(source, trio.current_time()))

    def _absent_helpers(self) -> list[Source]:
        """Return those to dial again now."""
        now, connected = trio.current_time(), self._resolver.connected()
        self._remember(connected.values())
        due = []
        for peer_id, helper in self._helpers.items():
            if peer_id in connected:
                helper.dial_at, helper.wait_s = now, _HELPER_WAIT_S
            elif helper.dial_at <= now:
                helper.dial_at = now + self._about(helper.wait_s)
                helper.wait_s = min(2 * helper.wait_s, self._config.follow_lookup_max_s)
                due.append(helper.source)
        return due

    def _about(self, seconds: float) -> float:
        return seconds * self._rng.uniform(1 - self._config.jitter, 1 + self._config.jitter)
