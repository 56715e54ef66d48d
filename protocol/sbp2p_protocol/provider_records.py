"""Provider records: who says that it has what lies under a key, for how long that is believed.

Theory of operation. A record is (key, provider) and the time it was announced; addresses are kept
once for each provider. Nothing is checked but the bounds: whether a peer really has a block is seen
when it is asked.

    what                            how long, how many
    a record                        48 h from its last announcement
    addresses of a provider         24 h; then the record is passed on without them
    records of one key              PROVIDERS_PER_KEY_MAX; the account with most there gives way
    records of one account          PROVIDER_RECORDS_EACH; its oldest gives way
    all records                     PROVIDER_RECORDS_MAX; the account with most gives way

Whom a record counts for (its account) is the caller's: the IP address where there is one, because
peer ids cost nothing. `now` is Unix time in seconds, since records outlive the process; a clock
that is set back delays ends and breaks nothing.

Changes since the last `take_changes` are remembered, for whoever writes them to a disk. When there
are more than it takes to write everything anew, that is what is asked for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from .limits import (
    PROVIDER_ADDRESS_BYTES,
    PROVIDER_ADDRESSES_MAX,
    PROVIDER_RECORDS_EACH,
    PROVIDER_RECORDS_MAX,
    PROVIDERS_PER_KEY_MAX,
)
from .shares import Shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    from sbp2p_keys.identity import PeerId

PROVIDER_VALID_S: Final = 48 * 3600.0
"""Seconds that a record is believed; every implementation's."""

ADDRESSES_VALID_S: Final = 24 * 3600.0
"""Seconds that a provider's addresses are passed on; go's."""


class ProviderKey(NamedTuple):
    """What identifies a record."""

    key: bytes
    provider: PeerId


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """One record, as it is written to a disk and read back.

    Attributes:
        key: A multihash, or whatever else was announced.
        provider: Who says that it has it.
        account: Whom the record counts for.
        announced: Unix time in seconds.
    """

    key: bytes
    provider: PeerId
    account: str
    announced: float


@dataclass(frozen=True, slots=True)
class AddressRow:
    """Where a provider said it can be dialled, as binary multiaddrs, and when."""

    provider: PeerId
    addresses: tuple[bytes, ...]
    told: float


@dataclass(frozen=True, slots=True)
class ProviderChanges:
    """What became different since the last time: rows to write, and rows that are gone.

    `anew`: what was written before is void, and these are all rows that there are.
    """

    anew: bool
    records: tuple[ProviderRow, ...]
    addresses: tuple[AddressRow, ...]
    gone: tuple[ProviderKey, ...]
    gone_addresses: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class FoundProvider:
    """A provider of a key, with the addresses it told lately."""

    provider: PeerId
    addresses: tuple[bytes, ...]


class _Provider:
    """A peer that provides something here."""

    __slots__ = ("addresses", "records", "told")

    def __init__(self) -> None:
        self.addresses: tuple[bytes, ...] = ()
        self.told = 0.0
        self.records = 0


class ProviderRecords:
    """The records that one node keeps for others. Not thread-safe.

    Args:
        most: records in all.
        each: records of one account.
        per_key: records of one key.
    """

    def __init__(
        self,
        *,
        most: int = PROVIDER_RECORDS_MAX,
        each: int = PROVIDER_RECORDS_EACH,
        per_key: int = PROVIDERS_PER_KEY_MAX,
    ) -> None:
        self._most = most
        self._each = each
        self._per_key = per_key
        self._keys: dict[bytes, dict[PeerId, float]] = {}
        """Key to its providers and when each announced it, the latest last."""
        self._providers: dict[PeerId, _Provider] = {}
        self._shares: Shares[ProviderKey] = Shares()
        self._changed: dict[ProviderKey, None] = {}
        self._changed_providers: dict[PeerId, None] = {}
        self._anew = False

    def __len__(self) -> int:
        return len(self._shares)

    def add(
        self,
        key: bytes,
        provider: PeerId,
        addresses: Iterable[bytes],
        now: float,
        *,
        account: str | None = None,
    ) -> None:
        """Keep a record, or prolong it; addresses replace those that were told before.

        Args:
            key: what is provided.
            provider: who provides it; the caller knows that it said so itself.
            addresses: binary multiaddrs. As many as PROVIDER_ADDRESSES_MAX and
                PROVIDER_ADDRESS_BYTES allow are kept; none leaves what was told before.
            now: Unix time.
            account: whom the record counts for; the provider itself if None.
        """
        kept = _kept(addresses)
        account = account or str(provider)
        self._store(ProviderRow(key, provider, account, now))
        if kept:
            holder = self._providers[provider]
            holder.addresses, holder.told = kept, now
            self._changed_providers[provider] = None
        self._make_room(key, account)

    def restore(self, rows: Iterable[ProviderRow], addresses: Iterable[AddressRow]) -> None:
        """Take back what was written to a disk, oldest first; bounds hold as in `add`."""
        for row in rows:
            self._store(row)
            self._make_room(row.key, row.account)
        for told in addresses:
            holder = self._providers.get(told.provider)
            if holder is not None:
                holder.addresses, holder.told = _kept(told.addresses), told.told
        self._changed.clear()
        self._changed_providers.clear()

    def _store(self, row: ProviderRow) -> None:
        found = self._keys.setdefault(row.key, {})
        if found.pop(row.provider, None) is None:
            self._providers.setdefault(row.provider, _Provider()).records += 1
        found[row.provider] = row.announced
        item = ProviderKey(row.key, row.provider)
        self._shares.put(item, row.account)
        self._note(item)

    def _note(self, item: ProviderKey) -> None:
        if self._anew:
            return
        self._changed[item] = None
        if len(self._changed) > 2 * self._most:
            self.write_anew()

    def _make_room(self, key: bytes, account: str) -> None:
        if len(self._keys[key]) > self._per_key:
            self._remove(self._victim_of(key))
        if self._shares.count(account) > self._each:
            self._remove(self._shares.oldest(account))
        if len(self._shares) > self._most:
            self._remove(self._shares.victim())

    def _victim_of(self, key: bytes) -> ProviderKey:
        """Return the oldest record of the account that has the most under one key."""
        items = [ProviderKey(key, provider) for provider in self._keys[key]]
        counts = Counter(self._shares.account_of(item) for item in items)
        (account, _), *_ = counts.most_common(1)
        return next(item for item in items if self._shares.account_of(item) == account)

    def _remove(self, item: ProviderKey) -> None:
        found = self._keys[item.key]
        del found[item.provider]
        if not found:
            del self._keys[item.key]
        self._shares.discard(item)
        self._note(item)
        holder = self._providers[item.provider]
        holder.records -= 1
        if not holder.records:
            del self._providers[item.provider]
            if not self._anew:
                self._changed_providers[item.provider] = None

    def remove(self, key: bytes, provider: PeerId) -> None:
        """Forget a record, if it is here."""
        item = ProviderKey(key, provider)
        if item in self._shares:
            self._remove(item)

    def find(self, key: bytes, now: float, *, count: int, rng: Random) -> list[FoundProvider]:
        """Return up to `count` providers of a key; which of more is left to chance."""
        found = self._keys.get(key, {})
        valid = [each for each, announced in found.items() if now - announced < PROVIDER_VALID_S]
        if len(valid) > count:
            valid = rng.sample(valid, count)
        return [FoundProvider(provider, self._addresses_of(provider, now)) for provider in valid]

    def _addresses_of(self, provider: PeerId, now: float) -> tuple[bytes, ...]:
        holder = self._providers[provider]
        return holder.addresses if now - holder.told < ADDRESSES_VALID_S else ()

    def expire(self, now: float) -> int:
        """Forget every record whose time has passed; return how many."""
        before = len(self._shares)
        for account in self._shares.accounts():
            while self._shares.count(account):
                item = self._shares.oldest(account)
                if now - self._keys[item.key][item.provider] < PROVIDER_VALID_S:
                    break
                self._remove(item)
        return before - len(self._shares)

    def rows(self) -> Iterator[ProviderRow]:
        """Yield every record."""
        for key, found in self._keys.items():
            for provider, announced in found.items():
                item = ProviderKey(key, provider)
                yield ProviderRow(key, provider, self._shares.account_of(item), announced)

    @property
    def changes(self) -> int:
        """How many rows `take_changes` would return, about."""
        return len(self) if self._anew else len(self._changed)

    def write_anew(self) -> None:
        """Have everything written by the next batch: what the last one took was not."""
        self._anew = True
        self._changed.clear()
        self._changed_providers.clear()

    def take_changes(self) -> ProviderChanges:
        """Return what became different since this was called last."""
        if self._anew:
            self._changed = dict.fromkeys(ProviderKey(row.key, row.provider) for row in self.rows())
            self._changed_providers = dict.fromkeys(self._providers)
        anew, self._anew = self._anew, False
        changed, self._changed = self._changed, {}
        providers, self._changed_providers = self._changed_providers, {}
        return ProviderChanges(
            anew=anew,
            records=tuple(self._row(item) for item in changed if item in self._shares),
            addresses=tuple(
                AddressRow(provider, holder.addresses, holder.told)
                for provider in providers
                if (holder := self._providers.get(provider)) is not None
            ),
            gone=tuple(item for item in changed if item not in self._shares),
            gone_addresses=tuple(each for each in providers if each not in self._providers),
        )

    def _row(self, item: ProviderKey) -> ProviderRow:
        announced = self._keys[item.key][item.provider]
        return ProviderRow(item.key, item.provider, self._shares.account_of(item), announced)


def _kept(addresses: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the addresses that there is room for, each once, in their order."""
    kept: dict[bytes, None] = {}
    room = PROVIDER_ADDRESS_BYTES
    for address in addresses:
        if address in kept or len(address) > room:
            continue
        kept[address] = None
        room -= len(address)
        if len(kept) == PROVIDER_ADDRESSES_MAX:
            break
    return tuple(kept)
