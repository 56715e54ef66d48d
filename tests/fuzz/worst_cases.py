"""`python -m tests.fuzz.worst_cases`: what the dearest inputs cost that somebody has thought of.

Fuzzing finds inputs that break a rule; it does not find the input that is legal and slow. These
were made by hand: each is within every bound of limits.py and costs as much as it can. A line says
how many bytes a peer has to send, the processor time they take, and the memory at the peak (of
Python; protobuf has its own). Nothing is asserted: a figure depends on the machine.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sbp2p_keys.errors import KeysError
from sbp2p_keys.signing import SignedDocument
from sbp2p_protocol import dag_cbor
from sbp2p_protocol.cid import DAG_PB, Cid, raw_cid
from sbp2p_protocol.dag_pb import PbLink, PbNode, encode_node
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.exchange_messages import HaveAll, encode_message
from sbp2p_protocol.exchange_server import ExchangeServer
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.identify import IdentifyMessage
from sbp2p_protocol.limits import KIB, MIB
from sbp2p_protocol.tensor_index import parse_index_page
from sbp2p_protocol.tree import TreeWalker
from sbp2p_protocol.unixfs import encode_file_node
from sbp2p_protocol.yamux import YamuxSession
from sbp2p_protocol.yamux_frames import SYN, WINDOW_UPDATE, pack_header
from sbp2p_protocol.yamux_streams import YamuxConfig

from .corpus import DIGESTS
from .targets_exchange import HELLO, open_client

if TYPE_CHECKING:
    from collections.abc import Callable

    Case = tuple[int, Callable[[], object]]
    """Bytes that a peer sends, and what happens to them here."""

LEAF: Final = raw_cid(DIGESTS[0])


def cbor_of_empty_maps() -> Case:
    """A block of a million empty maps."""
    data = b"\x9a" + (MIB - 5).to_bytes(4, "big") + b"\xa0" * (MIB - 5)
    return len(data), lambda: dag_cbor.decode(data)


def tensor_page_with_a_long_path() -> Case:
    """A page of short tensors in one file, whose path is as long as a path may be."""
    path = "/".join(["x" * 127] * 31)
    names = sorted(format(number, "x") for number in range(60_000))
    rows = [[name, "F", [], 0, 0, 0] for name in names]
    data = dag_cbor.encode({"format": 1, "files": [path], "tensors": rows})
    return len(data), lambda: parse_index_page(data)


def document_of_empty_signatures() -> Case:
    """A document that is 2 million signatures of no bytes."""
    data = b"\x1a\x00" * (2 * MIB)
    return len(data), lambda: SignedDocument.from_bytes(data)


def tree_of_long_paths() -> Case:
    """A few directories that stand in each other twice, and spell as many files as may be."""
    nodes: dict[Cid, bytes] = {}
    root = LEAF
    for level in range(31):
        names = ("a" * 124, "b" * 124) if level < 16 else ("a" * 124,)
        root = _directory(nodes, [(name, root, 1) for name in names])
    return sum(map(len, nodes.values())), lambda: _walk(root, nodes)


def tree_of_one_leaf() -> Case:
    """A file of four million times the same byte; a part is listed before it is refused."""
    nodes: dict[Cid, bytes] = {}
    node, size = LEAF, 1
    for width in (1024, 1024, 4):
        data = encode_file_node([(node.to_bytes(), size, size)] * width)
        node, size = Cid.for_block(DAG_PB, data), size * width
        nodes[node] = data
    root = _directory(nodes, [("file", node, size)])
    return sum(map(len, nodes.values())), lambda: _walk(root, nodes)


def _directory(nodes: dict[Cid, bytes], entries: list[tuple[str, Cid, int]]) -> Cid:
    links = tuple(PbLink(cid, name, size) for name, cid, size in entries)
    data = encode_node(PbNode(links, b"\x08\x01"))
    cid = Cid.for_block(DAG_PB, data)
    nodes[cid] = data
    return cid


def _walk(root: Cid, nodes: dict[Cid, bytes]) -> object:
    walker = TreeWalker(root)
    while not walker.done:
        for cid in walker.needed():
            walker.receive_node(cid, nodes[cid])
    return walker.finish()


def exchange_of_messages_to_be_ignored() -> Case:
    """A slice of a read full of messages of an unknown odd kind, three bytes each."""
    data = encode_length_prefixed(b"\x81\x17") * (MIB // 3)

    def run() -> None:
        server = ExchangeServer(max_outstanding_bytes=64 * MIB)
        server.receive_data(HELLO)
        server.receive_data(data)

    return len(data), run


def exchange_of_news() -> Case:
    """A slice of a read full of HAVE_ALL, four bytes each."""
    data = encode_length_prefixed(encode_message(HaveAll(1))) * (MIB // 4)
    return len(data), lambda: open_client().receive_data(bytearray(data), 0.0)


def identify_of_certificates() -> Case:
    """Addresses full of certificate hashes, the dearest component."""
    address = (b"\xd2\x03\x22\x12\x20" + bytes(32)) * 27
    message = IdentifyMessage(listen_addresses=(address,) * 64)
    return 64 * len(address), lambda: message.addresses


def yamux_of_gaps() -> Case:
    """Streams whose ids lie far apart."""
    data = b"".join(pack_header(WINDOW_UPDATE, SYN, 1 + 512 * n, 0) for n in range(4 * KIB))

    def run() -> None:
        session = YamuxSession(initiator=False, config=YamuxConfig(max_inbound_streams=1), now=0.0)
        for at in range(0, len(data), 12 * KIB):
            session.receive_data(data[at : at + 12 * KIB], 0.0)
            session.take_control()

    return len(data), run


CASES: Final = (
    cbor_of_empty_maps,
    tensor_page_with_a_long_path,
    document_of_empty_signatures,
    tree_of_long_paths,
    tree_of_one_leaf,
    exchange_of_messages_to_be_ignored,
    exchange_of_news,
    identify_of_certificates,
    yamux_of_gaps,
)


def main() -> None:
    """Print a line a case."""
    for case in CASES:
        size, run = case()
        begun = time.process_time()
        with suppress(RemoteProtocolError, KeysError):
            run()
        seconds = time.process_time() - begun
        tracemalloc.start()
        with suppress(RemoteProtocolError, KeysError):
            run()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        name = case.__name__.replace("_", " ")
        sys.stdout.write(f"{name:36} {size:8} bytes {seconds:6.2f} s {peak / MIB:7.1f} MiB\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
