"""Whose versions of a model are accepted: pinned publishers, revoked keys, and what else is asked.

Theory of operation: a trust store is a value. `check` answers for one publisher and one model name;
`pin`, `unpin` and `revoke` return a changed store; nothing here asks anybody or reads a clock.
`now` is seconds since 1970, because pins outlive processes.

Rules, the first that applies decides:

    the key is revoked                                      REFUSE
    the name has pins      live, to this publisher          ACCEPT
                           live, to others only             REFUSE
                           all of them lapsed or revoked    ASK      PINNED_ONLY: REFUSE
    ANY_NAME has a live pin to this publisher               ACCEPT
    otherwise              FIRST_USE: ASK    PINNED_ONLY: REFUSE    ANY: ACCEPT

So revocation beats every pin, and a pin closes its name to others under every policy. A caller that
has nobody to ask takes ASK for REFUSE.

Errors: RevokedKeyError for a pin to a revoked key, BadTrustFileError and the other FileError leaves
for files, ValueError for a name, a reason or a time that none can be.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ._files import read_file, write_file
from .errors import BadPeerIdError, BadTrustFileError, RevokedKeyError
from .identity import PeerId
from .limits import TRUST_FILE_MAX, TRUST_NAME_MAX, TRUST_REASON_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY_NAME: Final = "*"
"""The name under which a publisher is pinned for every model that has no pins of its own."""

_FORMAT: Final = "sbp2p-trust/1"
_TIME_MAX: Final = 2**53 - 1  # JSON numbers are exact up to here


class TrustPolicy(Enum):
    """What to do about a publisher that is neither pinned nor revoked."""

    FIRST_USE = "first-use"
    PINNED_ONLY = "pinned-only"
    ANY = "any"


class TrustVerdict(Enum):
    """What a check says."""

    ACCEPT = "accept"
    ASK = "ask"
    REFUSE = "refuse"


_UNPINNED: Final = {
    TrustPolicy.ANY: TrustVerdict.ACCEPT,
    TrustPolicy.FIRST_USE: TrustVerdict.ASK,
    TrustPolicy.PINNED_ONLY: TrustVerdict.REFUSE,
}


@dataclass(frozen=True, slots=True)
class TrustDecision:
    """A verdict and, in one line for people, why."""

    verdict: TrustVerdict
    reason: str


@dataclass(frozen=True, slots=True)
class Pin:
    """A promise that a publisher may publish under a name.

    Attributes:
        publisher: who.
        since: when it was given, whole seconds since 1970; for people.
        until: first second at which it no longer holds, or None. For handing over to a new key.
    """

    publisher: PeerId
    since: int
    until: int | None = None

    def __post_init__(self) -> None:
        """Refuse with ValueError times that no file can hold."""
        for time in (self.since, self.until):
            if time is not None and not 0 <= time <= _TIME_MAX:
                raise ValueError(f"not a time: {time}")


@dataclass(frozen=True, slots=True)
class Revocation:
    """When a key was revoked (whole seconds since 1970), and why. It holds for ever, and back."""

    since: int
    reason: str

    def __post_init__(self) -> None:
        """Refuse with ValueError what no file can hold."""
        if not 0 <= self.since <= _TIME_MAX:
            raise ValueError(f"not a time: {self.since}")
        _check_text(self.reason, "reason", TRUST_REASON_MAX)


@dataclass(frozen=True, slots=True)
class TrustStore:
    """Pins by model name, revocations by key, and the policy for everyone else. Immutable."""

    policy: TrustPolicy = TrustPolicy.FIRST_USE
    pins: Mapping[str, tuple[Pin, ...]] = field(default_factory=dict)
    revoked: Mapping[PeerId, Revocation] = field(default_factory=dict)

    def check(self, publisher: PeerId, name: str, now: float) -> TrustDecision:
        """Say whether versions of `name` by `publisher` are accepted."""
        revocation = self.revoked.get(publisher)
        if revocation is not None:
            why = f": {revocation.reason}" if revocation.reason else ""
            return TrustDecision(TrustVerdict.REFUSE, f"the key {publisher} is revoked{why}")
        if name in self.pins:
            return self._check_pinned_name(publisher, name, now)
        if publisher in self._live(ANY_NAME, now):
            return TrustDecision(TrustVerdict.ACCEPT, f"{publisher} is pinned for every name")
        verdict = _UNPINNED[self.policy]
        return TrustDecision(verdict, f"nobody is pinned for {name!r} yet")

    def publishers(self, name: str, now: float) -> frozenset[PeerId]:
        """Return who is pinned for `name` now: what SignedDocument.require takes as allowed."""
        return self._live(name if name in self.pins else ANY_NAME, now)

    def pin(
        self, name: str, publisher: PeerId, now: float, until: float | None = None
    ) -> TrustStore:
        """Return a store that accepts `publisher` for `name`, beside those it accepts already.

        Raises:
            RevokedKeyError: the key was revoked; pinning it would have no effect.
            ValueError: the name is empty, too long, or has control characters.
        """
        _check_name(name)
        if publisher in self.revoked:
            raise RevokedKeyError(f"{publisher} is revoked and cannot be pinned: pin a new key")
        added = Pin(publisher, int(now), None if until is None else int(until))
        others = [pin for pin in self.pins.get(name, ()) if pin.publisher != publisher]
        ordered = sorted([*others, added], key=lambda pin: pin.publisher)
        return replace(self, pins={**self.pins, name: tuple(ordered)})

    def unpin(self, name: str, publisher: PeerId) -> TrustStore:
        """Return a store without that pin; a name without pins is open again."""
        left = tuple(pin for pin in self.pins.get(name, ()) if pin.publisher != publisher)
        pins = {key: value for key, value in self.pins.items() if key != name}
        return replace(self, pins={**pins, name: left} if left else pins)

    def revoke(self, publisher: PeerId, now: float, reason: str = "") -> TrustStore:
        """Return a store that refuses `publisher` for good; an earlier revocation stays."""
        if publisher in self.revoked:
            return self
        return replace(self, revoked={**self.revoked, publisher: Revocation(int(now), reason)})

    def to_bytes(self) -> bytes:
        """Return the store as JSON, sorted, for people to read and edit.

        Raises ValueError when it is longer than 4 MiB, which from_bytes would refuse.
        """
        value = {
            "format": _FORMAT,
            "policy": self.policy.value,
            "pins": {name: [_pin_to_json(pin) for pin in pins] for name, pins in self.pins.items()},
            "revoked": {
                str(peer): {"since": item.since, "reason": item.reason}
                for peer, item in self.revoked.items()
            },
        }
        text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
        data = text.encode() + b"\n"
        if len(data) > TRUST_FILE_MAX:
            raise ValueError(f"a trust store is at most {TRUST_FILE_MAX} bytes long")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> TrustStore:
        """Decode JSON in which nothing is unknown, missing or said twice.

        Raises:
            BadTrustFileError: it says what is wrong. Guessing what a damaged store meant could
                accept somebody it refused.
        """
        if len(data) > TRUST_FILE_MAX:
            raise BadTrustFileError(f"longer than {TRUST_FILE_MAX} bytes")
        try:
            value = json.loads(data.decode(), object_pairs_hook=_unique_keys)
            return _store_from_json(value)
        except BadTrustFileError:
            raise
        except (ValueError, RecursionError) as error:
            raise BadTrustFileError(f"not a trust store: {error!s:.200}") from None

    def _live(self, name: str, now: float) -> frozenset[PeerId]:
        return frozenset(
            pin.publisher
            for pin in self.pins.get(name, ())
            if (pin.until is None or now < pin.until) and pin.publisher not in self.revoked
        )

    def _check_pinned_name(self, publisher: PeerId, name: str, now: float) -> TrustDecision:
        live = self._live(name, now)
        if publisher in live:
            return TrustDecision(TrustVerdict.ACCEPT, f"{publisher} is pinned for {name!r}")
        if live:
            pinned = ", ".join(sorted(map(str, live)))
            return TrustDecision(
                TrustVerdict.REFUSE,
                f"{name!r} is pinned to {pinned}, and this is by {publisher}: "
                "if its publisher has a new key, pin that one",
            )
        closed = self.policy is TrustPolicy.PINNED_ONLY
        return TrustDecision(
            TrustVerdict.REFUSE if closed else TrustVerdict.ASK,
            f"every pin for {name!r} is lapsed or revoked, and this is by {publisher}",
        )


def load_trust_store(path: str | Path) -> TrustStore:
    """Read a trust store that only its owner can change.

    Raises:
        FileError: a leaf that names what is wrong. FileMissingError when there is none yet.
    """
    path = Path(path)
    data = read_file(path, limit=TRUST_FILE_MAX, forbidden_mode=0o022, mode_advice="go-w")
    try:
        return TrustStore.from_bytes(data)
    except BadTrustFileError as error:
        raise BadTrustFileError(f"{path}: {error}; correct it, or move it away") from None


def save_trust_store(path: str | Path, store: TrustStore) -> None:
    """Replace the file at `path` in one step, with mode 0600; raises the FileError leaves."""
    write_file(Path(path), store.to_bytes(), overwrite=True)


# -- JSON ------------------------------------------------------------------------------------------


def _pin_to_json(pin: Pin) -> dict[str, Any]:
    value: dict[str, Any] = {"publisher": str(pin.publisher), "since": pin.since}
    return value if pin.until is None else {**value, "until": pin.until}


def _store_from_json(value: Any) -> TrustStore:
    top = _object(value, "the file", {"format", "policy", "pins", "revoked"})
    if top["format"] != _FORMAT:
        raise BadTrustFileError(f"format is not {_FORMAT!r}")
    if not isinstance(top["policy"], str):
        raise BadTrustFileError("policy is not text")
    return TrustStore(
        policy=TrustPolicy(top["policy"]),
        pins={name: _pins(name, pins) for name, pins in _object(top["pins"], "pins").items()},
        revoked=_revocations(_object(top["revoked"], "revoked")),
    )


def _pins(name: str, value: Any) -> tuple[Pin, ...]:
    _check_name(name)
    if not isinstance(value, list) or not value:
        raise BadTrustFileError(f"pins of {name!r} are no list, or an empty one")
    pins = []
    for item in value:
        entry = _object(item, "a pin", {"publisher", "since"}, {"until"})
        until = _time(entry["until"]) if "until" in entry else None
        pins.append(Pin(_peer(entry["publisher"]), _time(entry["since"]), until))
    if len({pin.publisher for pin in pins}) < len(pins):
        raise BadTrustFileError(f"a publisher is pinned twice for {name!r}")
    return tuple(sorted(pins, key=lambda pin: pin.publisher))


def _revocations(value: dict[str, Any]) -> dict[PeerId, Revocation]:
    revoked: dict[PeerId, Revocation] = {}
    for text, item in value.items():
        entry = _object(item, "a revocation", {"since", "reason"})
        if not isinstance(entry["reason"], str):
            raise BadTrustFileError("the reason of a revocation is not text")
        peer = _peer(text)
        if peer in revoked:
            raise BadTrustFileError(f"{peer} is revoked twice")
        revoked[peer] = Revocation(_time(entry["since"]), entry["reason"])
    return revoked


def _object(
    value: Any, what: str, required: set[str] | None = None, optional: set[str] | None = None
) -> dict[str, Any]:
    """Return `value` if it is an object with these members and no others; None allows all."""
    if not isinstance(value, dict):
        raise BadTrustFileError(f"{what}: not an object")
    if required is not None:
        missing, unknown = required - value.keys(), value.keys() - required - (optional or set())
        if missing or unknown:
            raise BadTrustFileError(
                f"{what}: missing {sorted(missing)!r}, unknown {sorted(unknown)!r:.200}"
            )
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise BadTrustFileError("an object says one thing twice")
    return value


def _peer(value: Any) -> PeerId:
    if not isinstance(value, str):
        raise BadTrustFileError("a publisher is not text")
    try:
        return PeerId.parse(value)
    except BadPeerIdError as error:
        raise BadTrustFileError(str(error)) from None


def _time(value: Any) -> int:
    # bool is an int to Python, not to JSON.
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadTrustFileError("a time is not a whole number")
    return value


def _check_name(name: str) -> None:
    if not name:
        raise ValueError("a model name is not empty")
    _check_text(name, "model name", TRUST_NAME_MAX)


def _check_text(text: str, what: str, limit: int) -> None:
    # encode() also refuses lone surrogates, which JSON escapes can spell; an encoding error is a
    # ValueError.
    if len(text.encode()) > limit:
        raise ValueError(f"{what} is longer than {limit} bytes")
    if any(character < " " or character == "\x7f" for character in text):
        raise ValueError(f"{what} has control characters")
