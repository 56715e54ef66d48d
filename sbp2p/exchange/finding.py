"""From a link to a version: its signed manifest, its tree, its tensor index.

All three are small and are fetched whole, whatever part of the version is wanted: with them this
node can serve it. What the store has is not asked of peers; for a name, peers are asked all the
same, since they may know a newer version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p.errors import NotFoundError, PeerMisbehavedError, PeerUnreachableError
from sbp2p.roles import ANYTHING, Subject
from sbp2p_protocol.cid import verify_block
from sbp2p_protocol.link import ManifestLink
from sbp2p_protocol.tensor_index import parse_index_root, read_tensor_index
from sbp2p_protocol.tree import TreeWalker

from .nodes import malformed
from .progress import FoundVersion

if TYPE_CHECKING:
    from sbp2p.calls import Calls
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.link import Link, NameLink
    from sbp2p_protocol.manifest import Manifest
    from sbp2p_protocol.tensor_index import TensorEntry

    from .library import Library
    from .peers import Peers


class Finder:
    """Finds and reads versions, with the store's help and the peers'."""

    def __init__(self, peers: Peers, library: Library, threads: Calls) -> None:
        self._peers = peers
        self._library = library
        self._threads = threads

    async def find(self, link: Link) -> tuple[SignedDocument, Manifest]:
        """Return the verified manifest that the link names.

        Raises:
            NotFoundError: neither the store nor a peer knows it.
            PeerUnreachableError: the store does not know it, and nobody could be asked.
            ConfigError: this node's role keeps it from asking for it.
        """
        sources = self._peers.sources
        if isinstance(link, ManifestLink):
            sources.concern(ANYTHING)
            found = await self._find_manifest(link.manifest)
        else:
            sources.concern(Subject(publisher=link.publisher, name=link.name))
            found = await self._find_name(link)
        sources.concern(Subject.of(found[1]))
        return found

    async def _find_manifest(self, cid: Cid) -> tuple[SignedDocument, Manifest]:
        record = await self._library.version(cid)
        if record is not None:
            return record.document, record.manifest
        return await self._peers.questions.find(
            f"version {cid}",
            lambda client: client.get_version(cid),
            lambda manifest: manifest.cid == cid,
            exact=True,
            keep_waiting=lambda: self._peers.more_may_come,
        )

    async def _find_name(self, link: NameLink) -> tuple[SignedDocument, Manifest]:
        publisher, name, version = link.publisher, link.name, link.version
        local = await self._library.named(publisher, name, version)
        if local is not None and version is not None:
            return local.document, local.manifest
        try:
            found = await self._peers.questions.find(
                f"{name}{'' if version is None else f'@{version}'} of publisher {publisher}",
                lambda client: client.resolve(publisher.to_bytes(), name, version),
                lambda manifest: (
                    manifest.publisher == publisher
                    and manifest.name == name
                    and version in (None, manifest.version)
                ),
                exact=version is not None,
                keep_waiting=lambda: self._peers.more_may_come,
            )
        except (NotFoundError, PeerMisbehavedError, PeerUnreachableError):
            if local is None:
                raise
            return local.document, local.manifest
        # what is here counts, too: a peer that has not heard of it must not roll it back
        if local is not None and local.version >= found[1].version:
            return local.document, local.manifest
        return found

    async def read(self, document: SignedDocument, manifest: Manifest) -> FoundVersion:
        """Return a version with its block table and its tensors.

        Raises:
            NotFoundError, PeerUnreachableError: a tree node or index page cannot be had.
            PeerMisbehavedError: the tree or the index is malformed.
        """
        table = await self._read_tree(manifest.root)
        tensors: tuple[TensorEntry, ...] = ()
        if manifest.tensors is not None:
            tensors = await self._read_tensors(manifest.tensors, table)
        return FoundVersion(document, manifest, table, tensors)

    async def _read_tree(self, root: Cid) -> BlockTable:
        with malformed():
            walker = TreeWalker(root)
        while not walker.done:
            await self._peers.nodes.fetch(walker.needed(), walker.receive_node)
        with malformed():
            return await self._threads.run(walker.finish)

    async def _read_tensors(self, index: Cid, table: BlockTable) -> tuple[TensorEntry, ...]:
        blocks: dict[Cid, bytes] = {}

        def take(cid: Cid, data: bytes) -> None:
            verify_block(cid, data)
            blocks[cid] = data

        await self._peers.nodes.fetch([index], take)
        with malformed():
            pages = parse_index_root(blocks[index])
        await self._peers.nodes.fetch(list(dict.fromkeys(pages)), take)
        in_order = [blocks[cid] for cid in pages]
        with malformed():
            entries = await self._threads.run(read_tensor_index, blocks[index], in_order, table)
        return tuple(entries)
