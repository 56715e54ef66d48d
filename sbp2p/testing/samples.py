"""Versions made up for a test: signed, with a real tree, and blocks of any length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.limits import KIB
from sbp2p_protocol.link import ManifestLink
from sbp2p_protocol.manifest import Manifest, sign_manifest
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.tree import TreeFile, TreeWalker, build_tree
from sbp2p_protocol.unixfs import build_file

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from sbp2p.node.node import Node
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.cid import Cid

    from .node import VirtualNode

_PUBLISHER = PrivateKey.from_seed(b"sbp2p.testing, samples: the key.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A version and the bytes of its files."""

    document: SignedDocument
    manifest: Manifest
    table: BlockTable
    nodes: tuple[tuple[Cid, bytes], ...]
    """The nodes of its tree."""
    files: Mapping[str, bytes]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.files.values()))

    def link(self, *nodes: VirtualNode) -> str:
        """Return the link to it, with the addresses of nodes to ask."""
        addresses = tuple(parse_address(node.address) for node in nodes)
        return str(ManifestLink(self.manifest.cid, addresses))

    def give_to(self, node: Node) -> None:
        """Have a node hold it whole, as if it had published it."""
        root = node.home / f"sample-{self.manifest.version}"
        for path, data in self.files.items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        node.store.put_loose_many(self.nodes)
        node.store.add_version(self.document, self.manifest, self.table, root)
        node.exchange.published(self.manifest.root)

    def is_at(self, folder: Path) -> bool:
        """Whether its files lie under a folder, byte for byte."""
        return all(
            (folder / path).is_file() and (folder / path).read_bytes() == data
            for path, data in self.files.items()
        )


def make_sample(
    rng: random.Random, *, blocks: int, block_bytes: int = 64 * KIB, name: str = "sample"
) -> Sample:
    """Make a version of so many random blocks in one file, and a small file beside it."""
    weights = b"".join(rng.randbytes(block_bytes) for _ in range(blocks))
    files = {"config.json": b'{"layers": 2}', "weights.bin": weights}
    nodes: list[tuple[Cid, bytes]] = []
    entries: list[TreeFile] = []
    for path, data in files.items():
        pieces = [data[at : at + block_bytes] for at in range(0, len(data), block_bytes)]
        built = build_file((blake3(piece).digest(), len(piece)) for piece in pieces)
        nodes += built.nodes
        entries.append(TreeFile(path, built.cid, built.tsize))
    tree = build_tree(entries)
    nodes += tree.nodes
    manifest = Manifest(
        name=name, version=1, root=tree.root, publisher=_PUBLISHER.peer_id, created=1
    )
    return Sample(
        document=sign_manifest(manifest, _PUBLISHER),
        manifest=manifest,
        table=_table(tree.root, dict(nodes)),
        nodes=tuple(nodes),
        files=files,
    )


def _table(root: Cid, nodes: Mapping[Cid, bytes]) -> BlockTable:
    walker = TreeWalker(root)
    while not walker.done:
        for cid in walker.needed():
            walker.receive_node(cid, nodes[cid])
    return walker.finish()
