"""`sbp2p audit`: what went into a round's merge, and is the result what its author signed?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from .console import Settings
from .invocation import Invocation
from .options import Home, Json, Quiet, Reference, Verbose  # noqa: TC001  (typer evaluates these)
from .text import columns, printable

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p.node import Version
    from sbp2p.store import Store
    from sbp2p_protocol.round_record import RoundRecord

    from .console import Console


def command(
    reference: Reference,
    replay: Annotated[
        bool, Option("--replay", help="Merge the models again, and compare the results.")
    ] = False,
    base: Annotated[
        str | None,
        Option(
            "--base",
            metavar="PATH",
            help="The model that the round before ended with, for a method that needs it.",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Show a round's signed record: who was merged with which weight, and who was not and why."""
    run = partial(_run, reference=reference, replay=replay, base=base)
    return Invocation(Settings(home, json, quiet, verbose), run)


def _run(console: Console, *, reference: str, replay: bool, base: str | None) -> int:
    from pathlib import Path

    from sbp2p.errors import ConfigError
    from sbp2p.namespace.audit import read_record
    from sbp2p.node.local import find_version

    from .session import with_store

    if base is not None and not replay:
        raise ConfigError("--base goes with --replay")

    async def body(store: Store) -> int:
        version = find_version(store, reference)
        record = read_record(version.path)
        is_same = None
        if replay:
            is_same = _replay(store, record, None if base is None else Path(base))
        console.event("round", **_fields(version, record), replayed=is_same)
        for line in _lines(record):
            console.result(line)
        return _verdict(console, record, is_same)

    return with_store(console, body)


def _replay(store: Store, record: RoundRecord, base: Path | None) -> bool:
    from sbp2p.checkpoint.reader import TensorReader
    from sbp2p.namespace.audit import stored_models
    from sbp2p.namespace.record import replay

    start = None
    if base is not None:
        with TensorReader(base) as reader:
            start = {name: reader.read(name) for name in reader.names()}
    return replay(record, stored_models(store, record), base=start).is_same


def _verdict(console: Console, record: RoundRecord, is_same: bool | None) -> int:
    from sbp2p.errors import PeerMisbehavedError

    if is_same is None:
        console.note("add --replay to merge these models again and compare")
    elif is_same:
        console.result("merged again: the same result, bit for bit")
    else:
        raise PeerMisbehavedError(
            f"merged again, round {record.round} of {record.author} gives another result "
            "than was signed",
            hint="its author did not merge what it says; a method with a base or a state of its "
            "own needs --base, and its state",
        )
    return 0


def _fields(version: Version, record: RoundRecord) -> dict[str, Any]:
    return {
        "cid": str(version.cid),
        "publisher": str(version.publisher),
        "namespace": record.namespace,
        "round": record.round,
        "author": str(record.author),
        "method": record.method,
        "options": {key: str(value) for key, value in record.options.items()},
        "topology": record.topology,
        "digest": record.digest.hex(),
        "merged": [
            {
                "peer": str(each.peer_id),
                "cid": str(each.cid),
                "round": each.round,
                "weight": str(each.weight),
                "samples": each.samples,
            }
            for each in record.contributions
        ],
        "rejected": [
            {"peer": str(each.peer_id), "cid": str(each.cid), "reason": each.reason}
            for each in record.rejected
        ],
        "missing": [str(peer) for peer in record.missing],
    }


def _lines(record: RoundRecord) -> list[str]:
    options = "".join(f", {key}={value!r}" for key, value in sorted(record.options.items()))
    lines = [
        f"round {record.round} of {printable(record.namespace)} at {record.author}",
        printable(f"method {record.method}{options}; topology {record.topology}"),
    ]
    rows = [("PEER", "ROUND", "WEIGHT", "SAMPLES", "VERSION")]
    rows += [
        (str(each.peer_id), str(each.round), str(each.weight), str(each.samples), str(each.cid))
        for each in record.contributions
    ]
    lines += columns(rows, right=frozenset({1, 2, 3}))
    lines += [
        printable(f"rejected {each.peer_id}, {each.cid}: {each.reason}") for each in record.rejected
    ]
    lines += [f"missing {peer}" for peer in record.missing]
    return [*lines, f"result {record.digest.hex()}"]
