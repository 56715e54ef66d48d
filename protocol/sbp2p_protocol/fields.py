"""Reading a dag-cbor map by a schema: exact keys, exact types, bounded values.

Theory of operation: a schema of ours has a fixed set of keys, all present. A map with another set
is another format, so it is refused rather than half understood; the `format` number in the schema
is what changes when keys do.

Error cases: everything raises RemoteProtocolError that names the schema and the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p_protocol.cid import Cid
from sbp2p_protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from sbp2p_protocol.dag_cbor import CborValue

FORMAT = 1
"""The one version of every dag-cbor schema in the data model."""


class Fields:
    """A decoded map that is being read; `what` names its schema in errors."""

    __slots__ = ("_map", "_what")

    def __init__(self, value: CborValue, keys: frozenset[str], what: str) -> None:
        """Check that `value` is a map with exactly these keys."""
        if not isinstance(value, dict) or value.keys() != keys:
            raise RemoteProtocolError(f"{what}: not a map of {', '.join(sorted(keys))}")
        self._map = value
        self._what = what

    def fault(self, key: str, reason: str) -> RemoteProtocolError:
        """Return the error that says what is wrong with `key`."""
        return RemoteProtocolError(f"{self._what}: {key} {reason}")

    def check_format(self) -> None:
        """Refuse a map whose `format` is not the known one."""
        if self.integer("format", 0, 2**63) != FORMAT:
            raise self.fault("format", f"is not {FORMAT}: a newer sbp2p made this")

    def integer(self, key: str, least: int, most: int) -> int:
        """Return an integer within bounds; booleans are none."""
        value = self._map[key]
        if type(value) is not int or not least <= value <= most:
            raise self.fault(key, f"is not an integer from {least} to {most}")
        return value

    def text(self, key: str) -> str:
        """Return text; the size of the whole block bounds it."""
        value = self._map[key]
        if not isinstance(value, str):
            raise self.fault(key, "is not text")
        return value

    def blob(self, key: str) -> bytes:
        """Return a byte string."""
        value = self._map[key]
        if not isinstance(value, bytes):
            raise self.fault(key, "is not a byte string")
        return value

    def blob_or_none(self, key: str) -> bytes | None:
        """Return a byte string or null."""
        return None if self._map[key] is None else self.blob(key)

    def items(self, key: str, most: int) -> list[CborValue]:
        """Return an array of bounded length."""
        value = self._map[key]
        if not isinstance(value, list) or len(value) > most:
            raise self.fault(key, f"is not an array of at most {most}")
        return value

    def mapping(self, key: str) -> dict[str, CborValue]:
        """Return a map."""
        value = self._map[key]
        if not isinstance(value, dict):
            raise self.fault(key, "is not a map")
        return value

    def cid(self, key: str) -> Cid:
        """Return a link."""
        value = self._map[key]
        if not isinstance(value, Cid):
            raise self.fault(key, "is not a link")
        return value

    def cid_or_none(self, key: str) -> Cid | None:
        """Return a link or null."""
        return None if self._map[key] is None else self.cid(key)

    def cids(self, key: str, most: int) -> list[Cid]:
        """Return an array of links, of bounded length."""
        links = self.items(key, most)
        found = [link for link in links if isinstance(link, Cid)]
        if len(found) != len(links):
            raise self.fault(key, "holds something that is not a link")
        return found
