"""Who gives way when a bounded store is full: the one who fills it.

Theory of operation. Every item counts for an account, which is whoever had it stored. Items of an
account stand in the order in which they were last stored. When there is no room the account with
the most items gives up its oldest one, so somebody who floods the store pushes out what is his own,
and others notice nothing until they have as much. Every operation takes constant time.

A `Quota` bounds how often an account may do something. Accounts that are not full again are kept,
the latest QUOTA_ACCOUNTS_MAX of them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Generic, TypeVar

from .limits import QUOTA_ACCOUNTS_MAX

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

ItemT = TypeVar("ItemT", bound="Hashable")


class Shares(Generic[ItemT]):
    """Items by account, and which of them to give up."""

    __slots__ = ("_by_count", "_items", "_most", "_owners")

    def __init__(self) -> None:
        self._owners: dict[ItemT, str] = {}
        self._items: dict[str, dict[ItemT, None]] = {}
        self._by_count: defaultdict[int, dict[str, None]] = defaultdict(dict)
        self._most = 0

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, item: ItemT) -> bool:
        return item in self._owners

    def put(self, item: ItemT, account: str) -> None:
        """Count an item for an account, as its latest, and for no other."""
        self.discard(item)
        self._owners[item] = account
        items = self._items.setdefault(account, {})
        items[item] = None
        self._moved(account, len(items) - 1, len(items))

    def discard(self, item: ItemT) -> None:
        """Count an item no more, if it was."""
        account = self._owners.pop(item, None)
        if account is None:
            return
        items = self._items[account]
        del items[item]
        self._moved(account, len(items) + 1, len(items))
        if not items:
            del self._items[account]

    def _moved(self, account: str, before: int, after: int) -> None:
        if before:
            del self._by_count[before][account]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count[after][account] = None
        if after > self._most or self._most not in self._by_count:
            self._most = after

    def account_of(self, item: ItemT) -> str:
        """Return whom an item counts for; KeyError if it does not count."""
        return self._owners[item]

    def count(self, account: str) -> int:
        """Return how many items count for an account."""
        return len(self._items.get(account, ()))

    def oldest(self, account: str) -> ItemT:
        """Return the item of an account that was stored longest ago; it must have one."""
        return next(iter(self._items[account]))

    def victim(self) -> ItemT:
        """Return the item to give up: the oldest of the account that has most. There must be one.

        Of several accounts with equally many, the one that has had so many for longest.
        """
        return self.oldest(next(iter(self._by_count[self._most])))

    def accounts(self) -> Iterator[str]:
        """Yield every account that has an item."""
        yield from list(self._items)


class Quota:
    """How often an account may do something: `burst` times at once, then `rate` times a second."""

    __slots__ = ("_burst", "_levels", "_rate")

    def __init__(self, *, burst: float, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._levels: dict[str, tuple[float, float]] = {}
        """Account to what is left of its burst, and when that was counted."""

    def take(self, account: str, now: float, count: float = 1.0) -> bool:
        """Return whether an account may do it now; then it has done it `count` times."""
        level, at = self._levels.pop(account, (self._burst, now))
        level = min(self._burst, level + max(0.0, now - at) * self._rate)
        allowed = level >= count
        # at the end, so that the first is who has done nothing for longest
        self._levels[account] = (level - count if allowed else level, now)
        if len(self._levels) > QUOTA_ACCOUNTS_MAX:
            del self._levels[next(iter(self._levels))]
        return allowed
