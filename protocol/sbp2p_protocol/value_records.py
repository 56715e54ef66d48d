"""Value records: signed statements that a node keeps for others, each under a key of its own.

Theory of operation. A key begins with its namespace, and each namespace knows which values may
stand under a key (`validate`) and which of two is better (`order`). What no namespace allows is not
kept. A value takes the place of one that is not better than it, in `order`; the same value again
only renews its time.

    namespace          value                              better
    /pk/<peer id>      the key protobuf of that peer      there is only one
    /ipns/<peer id>    an IPNS record of that peer        sequence, then validity, then bytes

    what               how long, how many
    a value            48 h from its last PUT_VALUE, and as long as it is valid
    values             VALUE_RECORDS_MAX, of one account VALUE_RECORDS_EACH; see shares.py

A key has one value at a time, whoever puts it; it counts for the account that put it last. `now` is
Unix time in seconds. Changes since the last `take_changes` are remembered.

Errors: `RemoteProtocolError` for a value that is not allowed, `IntegrityError` if a signature says
so; `UnknownNamespaceError` and `RecordExpiredError`, kinds of it, for what honest peers put, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId, PublicKey

from .errors import IntegrityError, RemoteProtocolError
from .ipns import IPNS_NAMESPACE, name_of_key, open_ipns_record
from .limits import VALUE_RECORDS_EACH, VALUE_RECORDS_MAX
from .shares import Shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VALUE_VALID_S: Final = 48 * 3600.0
"""Seconds that a value is kept without being put again; every implementation's."""

PK_NAMESPACE: Final = b"/pk/"


class UnknownNamespaceError(RemoteProtocolError):
    """A key that begins with no namespace that is known here."""


class Standing(NamedTuple):
    """What a namespace says of a value that it allows.

    Attributes:
        order: Of the values of one key, the one where this is greatest is the best.
        until: Unix time in seconds from which the value is not valid any more.
    """

    order: Any
    until: float


class Namespace(Protocol):
    """What may stand under the keys that begin with one prefix."""

    def validate(self, key: bytes, value: bytes, now: float) -> Standing:
        """Return how good the value is and how long.

        Raises:
            RemoteProtocolError: it may not stand under this key, or not any more.
        """


class IpnsNamespace:
    """IPNS records."""

    def validate(self, key: bytes, value: bytes, now: float) -> Standing:
        """Verify a record of the peer that the key names."""
        record = open_ipns_record(value, name_of_key(key), now)
        return Standing(record.order, record.valid_until)


class PkNamespace:
    """Public keys, for peers whose id does not hold theirs."""

    def validate(self, key: bytes, value: bytes, now: float) -> Standing:
        """Compare a key with the peer id that the key names."""
        try:
            peer_id = PeerId.from_bytes(key[len(PK_NAMESPACE) :])
            public_key = PublicKey.from_protobuf(value)
        except KeysError as error:
            raise RemoteProtocolError(f"public key record: {error}") from None
        if not peer_id.matches(public_key):
            raise IntegrityError(f"public key record of {peer_id} has another key")
        return Standing(value, math.inf)


NAMESPACES: Final[Mapping[bytes, Namespace]] = {
    PK_NAMESPACE: PkNamespace(),
    IPNS_NAMESPACE: IpnsNamespace(),
}
"""Those of the public DHT."""


def validate_value(
    key: bytes, value: bytes, now: float, namespaces: Mapping[bytes, Namespace] = NAMESPACES
) -> Standing:
    """Return how good a value is under its key, and how long.

    Raises:
        UnknownNamespaceError: the key is of no namespace.
        RemoteProtocolError: the value may not stand under it.
    """
    for prefix, namespace in namespaces.items():
        if key.startswith(prefix):
            return namespace.validate(key, value, now)
    raise UnknownNamespaceError(f"no namespace for key {key[:16].hex()}")


def best_value(
    key: bytes,
    values: Iterable[bytes],
    now: float,
    namespaces: Mapping[bytes, Namespace] = NAMESPACES,
) -> bytes | None:
    """Return the best of those values that may stand under a key, or None."""
    best: tuple[Any, bytes] | None = None
    for value in values:
        try:
            found = validate_value(key, value, now, namespaces).order, value
        except RemoteProtocolError:
            continue
        if best is None or found > best:
            best = found
    return None if best is None else best[1]


@dataclass(frozen=True, slots=True)
class ValueRow:
    """One value, as it is kept, written to a disk and read back.

    Attributes:
        key: Begins with its namespace.
        value: What was put.
        account: Whom it counts for.
        received: Unix time in seconds of the last time it was put.
    """

    key: bytes
    value: bytes
    account: str
    received: float


@dataclass(frozen=True, slots=True)
class ValueChanges:
    """What became different since the last time; see `ProviderChanges`."""

    anew: bool
    records: tuple[ValueRow, ...]
    gone: tuple[bytes, ...]


class _Held(NamedTuple):
    """A value that is kept; it was verified once, when it came."""

    row: ValueRow
    standing: Standing

    def is_kept_at(self, now: float) -> bool:
        return now < min(self.standing.until, self.row.received + VALUE_VALID_S)


class ValueRecords:
    """The values that one node keeps for others. Not thread-safe.

    Args:
        most: values in all.
        each: values of one account.
        namespaces: prefix of the key to what may stand there.
    """

    def __init__(
        self,
        *,
        most: int = VALUE_RECORDS_MAX,
        each: int = VALUE_RECORDS_EACH,
        namespaces: Mapping[bytes, Namespace] = NAMESPACES,
    ) -> None:
        self._most = most
        self._each = each
        self._namespaces = namespaces
        self._held: dict[bytes, _Held] = {}
        self._shares: Shares[bytes] = Shares()
        self._changed: dict[bytes, None] = {}
        self._anew = False

    def __len__(self) -> int:
        return len(self._held)

    def put(self, key: bytes, value: bytes, now: float, *, account: str) -> bool:
        """Keep a value; return False if the one that is here is better, and stays.

        Raises:
            RemoteProtocolError: the value may not stand under this key.
        """
        standing = validate_value(key, value, now, self._namespaces)
        held = self._held.get(key)
        if held is not None and held.is_kept_at(now) and held.standing.order > standing.order:
            return False
        self._store(_Held(ValueRow(key, value, account, now), standing))
        return True

    def restore(self, rows: Iterable[ValueRow], now: float) -> None:
        """Take back what was written to a disk, oldest first; what is not valid now is left out."""
        for row in rows:
            try:
                standing = validate_value(row.key, row.value, now, self._namespaces)
            except RemoteProtocolError:
                continue
            self._store(_Held(row, standing))
        self._changed.clear()
        self._anew = False

    def _store(self, held: _Held) -> None:
        key, account = held.row.key, held.row.account
        self._held[key] = held
        self._shares.put(key, account)
        self._note(key)
        if self._shares.count(account) > self._each:
            self._remove(self._shares.oldest(account))
        if len(self._shares) > self._most:
            self._remove(self._shares.victim())

    def _remove(self, key: bytes) -> None:
        del self._held[key]
        self._shares.discard(key)
        self._note(key)

    def _note(self, key: bytes) -> None:
        if self._anew:
            return
        self._changed[key] = None
        if len(self._changed) > 2 * self._most:
            self.write_anew()

    def get(self, key: bytes, now: float) -> ValueRow | None:
        """Return the value under a key, if it is young and valid still."""
        held = self._held.get(key)
        return held.row if held is not None and held.is_kept_at(now) else None

    def expire(self, now: float) -> int:
        """Forget every value that is old or not valid any more; return how many."""
        gone = [key for key, held in self._held.items() if not held.is_kept_at(now)]
        for key in gone:
            self._remove(key)
        return len(gone)

    def rows(self) -> Iterator[ValueRow]:
        """Yield every value."""
        for held in self._held.values():
            yield held.row

    @property
    def changes(self) -> int:
        """How many rows `take_changes` would return, about."""
        return len(self) if self._anew else len(self._changed)

    def write_anew(self) -> None:
        """Have everything written by the next batch: what the last one took was not."""
        self._anew = True
        self._changed.clear()

    def take_changes(self) -> ValueChanges:
        """Return what became different since this was called last."""
        anew, self._anew = self._anew, False
        changed, self._changed = self._changed, {}
        if anew:
            changed = dict.fromkeys(self._held)
        return ValueChanges(
            anew=anew,
            records=tuple(self._held[key].row for key in changed if key in self._held),
            gone=tuple(key for key in changed if key not in self._held),
        )
