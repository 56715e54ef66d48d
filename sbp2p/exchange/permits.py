"""What this node's roles let go out: documents, news, blocks.

Theory of operation: where the role towards a peer is the same for every model, it decides by
itself. Where it depends on the model, a request has to be traced to one, since it names a digest
and nothing else: a leaf by the block tables of the versions here, a tree node or an index page by
walking the trees that are here. What belongs to several models may go out if one of them may; what
belongs to none follows the rule for the node.

All methods but `refusal` read the store and run in threads. Error cases: StoreError.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from sbp2p.errors import StoreError
from sbp2p.roles import Subject
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.tensor_index import parse_index_root
from sbp2p_protocol.tree import TreeWalker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.roles import Rules
    from sbp2p.store import Store, VersionRecord
    from sbp2p.swarm import Roles
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.manifest import Manifest

_TREES_KEPT: Final = 64
"""Versions whose loose blocks are remembered: 40 bytes for each tree node, of 1024 blocks."""


class Permits:
    """Asked before anything of the store is sent to a peer."""

    def __init__(self, roles: Roles, store: Store) -> None:
        self._roles = roles
        self._store = store
        self._trees: OrderedDict[Cid, frozenset[Cid]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def rules(self) -> Rules:
        """The rules that hold now."""
        return self._roles.rules

    def refusal(self, peer: PeerId) -> str | None:
        """Return why a peer gets nothing at all, or None if it may get something."""
        if self.rules.sends_to(peer):
            return None
        return "this node only receives"

    def manifest(self, peer: PeerId, manifest: Manifest) -> bool:
        """Whether the document of a version may be sent to a peer."""
        return self.rules.role(peer, Subject.of(manifest)).sends

    def root(self, peer: PeerId, root: Cid) -> bool:
        """Whether a peer may be told what is here of the version with this root."""
        whole = self.rules.whole(peer)
        if whole is not None:
            return whole.sends
        found = [each for each in self._store.versions() if each.manifest.root == root]
        subjects = [Subject.of(each.manifest) for each in found] or [Subject(root)]
        return any(self.rules.role(peer, subject).sends for subject in subjects)

    def blocks(self, peer: PeerId, wanted: Sequence[tuple[bytes, Cid | None]]) -> list[bool]:
        """Say of each block, a leaf by digest or a loose one by CID, whether a peer may have it."""
        whole = self.rules.whole(peer)
        if whole is not None:
            return [whole.sends] * len(wanted)
        records = self._store.versions()
        # what may go out first: then one table answers for most blocks
        records.sort(key=lambda each: not self.manifest(peer, each.manifest))
        return [self._block(peer, records, digest, cid) for digest, cid in wanted]

    def _block(
        self, peer: PeerId, records: Sequence[VersionRecord], digest: bytes, cid: Cid | None
    ) -> bool:
        for record in records:
            if self._holds(record, digest, cid):
                return self.manifest(peer, record.manifest)
        return self.rules.role(peer).sends

    def _holds(self, record: VersionRecord, digest: bytes, cid: Cid | None) -> bool:
        if cid is not None:
            return cid in self._tree(record)
        try:
            return self._store.table(record).index(digest) is not None
        except StoreError:  # its tree is damaged or was never here: nothing of it can be served
            return False

    def _tree(self, record: VersionRecord) -> frozenset[Cid]:
        """Return the CIDs of a version's tree nodes and index pages, as far as they are here."""
        with self._lock:
            if record.cid in self._trees:
                self._trees.move_to_end(record.cid)
                return self._trees[record.cid]
        found, complete = self._walk(record.manifest)
        if complete:
            with self._lock:
                self._trees[record.cid] = found
                while len(self._trees) > _TREES_KEPT:
                    self._trees.popitem(last=False)
        return found

    def _walk(self, manifest: Manifest) -> tuple[frozenset[Cid], bool]:
        found = {manifest.root}
        missing: set[Cid] = set()
        try:
            walker = TreeWalker(manifest.root)
            while needed := [cid for cid in walker.needed() if cid not in missing]:
                for cid in needed:
                    found.add(cid)
                    data = self._store.get_loose(cid)
                    if data is None:
                        missing.add(cid)
                    else:
                        walker.receive_node(cid, data)
            if manifest.tensors is not None:
                found.add(manifest.tensors)
                index = self._store.get_loose(manifest.tensors)
                if index is None:
                    missing.add(manifest.tensors)
                else:
                    found.update(parse_index_root(index))
        except RemoteProtocolError:  # it would not have been registered
            return frozenset(found), False
        return frozenset(found), not missing
