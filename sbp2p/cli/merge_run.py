"""What `sbp2p merge` does once its arguments are read: locate, merge, report, publish.

Theory of operation: as little is opened as the inputs need. Paths alone need neither the home nor
its key; versions need the store; `--publish` needs the key; links need a node. The merge itself
runs in a thread and is stopped between two pieces, so Ctrl-C leaves what was done, as a kill does.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sbp2p.errors import ConfigError
from sbp2p.merge.engine import MergeStoppedError, compute_alone
from sbp2p.merge.method import get
from sbp2p.merge.policies import Policies, Policy

from .merge_inputs import (
    FETCHED,
    Fetching,
    fetch_link,
    is_link,
    is_reference,
    locate,
    parse_options,
    parse_weights,
)
from .merge_job import Job, Outcome, Weighted, preview, work
from .merge_report import merged_fields, preview_fields, preview_lines, summary
from .sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from fractions import Fraction

    from sbp2p.merge.method import Names
    from sbp2p.node import Node, Version
    from sbp2p.store import Store
    from sbp2p_keys.identity import PrivateKey
    from sbp2p_protocol.manifest import MetaValue

    from .console import Console
    from .merge import Wish
    from .merge_inputs import Located

_NAMES: Final[dict[str, Names]] = {
    "strict": "strict",
    "intersection": "intersection",
    "keep-local": "keep-local",
}


@dataclass(frozen=True, slots=True)
class _Here:
    """What of this node is open."""

    store: Store | None = None
    signer: PrivateKey | None = None
    node: Node | None = None


def run(console: Console, wish: Wish) -> int:
    """Merge as wished, and return the exit code."""
    from . import session

    compute_alone()
    weights = parse_weights(wish.inputs, wish.weights)
    job = _job(wish)
    asked = [*wish.inputs, *([wish.base] if wish.base else [])]
    if wish.publish is not None:
        _check_publish(wish.publish, len(asked))
    console.resume_hint = "what is merged is kept: run the same command again to go on"

    async def body(here: _Here) -> int:
        return await _merge(console, wish, job, weights, here)

    if any(map(is_link, asked)):
        return _with_node(console, wish, body, asked)
    if wish.publish is not None and not wish.dry_run:
        return session.with_signer(console, lambda store, signer: body(_Here(store, signer)))
    if any(map(is_reference, asked)):
        return session.with_store(console, lambda store: body(_Here(store)))
    return session.run(console, lambda: body(_Here()))


def _job(wish: Wish) -> Job:
    """Read what says how to merge; raises ConfigError and MergeError."""
    if wish.names not in _NAMES:
        raise ConfigError(f"--names {wish.names!r} is none of {', '.join(_NAMES)}")
    options = parse_options(wish.options)
    size = wish.max_shard_size
    shard = None if size is None else parse_size("--max-shard-size", size)
    if shard == 0:
        raise ConfigError("--max-shard-size 0: no tensor fits into a file of no size")
    policies = _policies(wish)
    return Job(
        method=get(wish.method, **options),
        options=options,
        names=_NAMES[wish.names],
        policies=policies,
        policy_texts=wish.policies,
        dtype=wish.dtype,
        output=Path(wish.output or "."),
        max_shard_bytes=shard,
        threads=wish.threads,
        restart=wish.restart,
    )


def _policies(wish: Wish) -> Policies:
    """Return what becomes of each kind of tensor; raises ConfigError and MergeError."""
    rules = []
    for text in wish.policies:
        glob, mark, value = text.rpartition("=")
        if not mark or not glob:
            raise ConfigError(f"--policy {text!r} is not GLOB=POLICY")
        try:
            rules.append((glob, Policy(value)))
        except ValueError:
            known = ", ".join(each.value for each in Policy)
            raise ConfigError(f"--policy {text!r}: {value!r} is none of {known}") from None
    return Policies(tuple(rules), dtype=None if wish.dtype == "keep" else wish.dtype)


def _check_publish(name: str, models: int) -> None:
    """Raise ConfigError for what could only fail after hours of merging."""
    from sbp2p_protocol.limits import PARENTS_MAX
    from sbp2p_protocol.manifest import check_model_name

    if (reason := check_model_name(name)) is not None:
        raise ConfigError(f"--publish: {name!r} cannot name a model: {reason}")
    if models >= PARENTS_MAX:  # the version before is a parent, too
        raise ConfigError(
            f"{models} models: a version names at most {PARENTS_MAX - 1} that it was made from",
            hint="merge without --publish, or in groups",
        )


def _with_node(
    console: Console,
    wish: Wish,
    body: Callable[[_Here], Awaitable[int]],
    asked: Sequence[str],
) -> int:
    from sbp2p.config import NodeConfig
    from sbp2p_protocol.link import parse_link

    from .session import with_node

    for text in filter(is_link, asked):
        parse_link(text)  # a wrong link is told before the node is opened
    config = NodeConfig(discovery=wish.finding.discovery(stays=False), dht=wish.finding.dht())
    return with_node(
        console,
        lambda node: body(_Here(node.store, None, node)),
        config=config,
        swarm_file=wish.swarm_file,
    )


async def _merge(
    console: Console, wish: Wish, job: Job, weights: Sequence[Fraction], here: _Here
) -> int:
    from sbp2p.node.threads import run_stoppable, throttled
    from sbp2p.node.values import Progress

    from .progress import Reporter

    inputs, base = await _locate(console, wish, weights, here)
    if wish.dry_run:
        found = await run_stoppable(lambda _: preview(job, inputs, base))
        console.event("preview", **preview_fields(job, inputs, base, found))
        for line in preview_lines(job, inputs, base, found):
            console.result(line)
        return 0
    with Reporter(console) as reporter:

        def report(done: int, total: int) -> None:
            reporter(Progress(phase="merging", done_bytes=done, total_bytes=total))

        outcome = await run_stoppable(
            lambda should_stop: work(job, inputs, base, throttled(report), should_stop),
            stopped=MergeStoppedError,
        )
    tell = console.result if wish.publish is None else console.note
    for line in summary(outcome):
        tell(line)
    console.event("merged", **merged_fields(job, outcome))
    if wish.publish is not None:
        await _publish(console, wish.publish, job, outcome, base, here)
    return 0


async def _locate(
    console: Console, wish: Wish, weights: Sequence[Fraction], here: _Here
) -> tuple[list[Weighted], Located | None]:
    """Find every model, fetching what is not here."""
    import trio

    from .fetched import tell_connections, who_trusts
    from .progress import Reporter

    fetch: Callable[[str], Awaitable[Version]] | None

    async def find(text: str) -> Located:
        return await locate(console, text, here.store, fetch)

    async def all_of_them() -> tuple[list[Weighted], Located | None]:
        found = [await find(text) for text in wish.inputs]
        base = None if wish.base is None else await find(wish.base)
        return list(map(Weighted, found, weights)), base

    node = here.node
    if node is None:
        fetch = None
        return await all_of_them()
    trust = who_trusts(console, wish.trust_new)
    with Reporter(console) as reporter:
        folder = node.home / FETCHED if wish.to is None else Path(wish.to)
        fetch = partial(fetch_link, node, Fetching(folder, wish.peers, trust, reporter))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell_connections, console, node)
            located = await all_of_them()
            nursery.cancel_scope.cancel()
    return located


async def _publish(
    console: Console, name: str, job: Job, outcome: Outcome, base: Located | None, here: _Here
) -> None:
    """Sign the result as a version whose parents are the versions that it was made from."""
    from sbp2p.node.publishing import make_request, publish

    from .progress import Reporter
    from .publish import published_fields
    from .publish import summary as publish_summary

    started = time.perf_counter()
    models = [*outcome.used, *([base] if base is not None else [])]
    parents = list(dict.fromkeys(each.cid for each in models if each.cid is not None))
    meta: dict[str, MetaValue] = {"merge_method": job.method.name, "merged": len(outcome.used)}
    if job.options:
        options = {key: str(value) for key, value in sorted(job.options.items())}
        meta["merge_options"] = json.dumps(options)
    with Reporter(console, events=False) as reporter:
        if here.node is not None:
            result = await here.node.publish_in_detail(
                outcome.output, name=name, meta=meta, parents=parents, progress=reporter
            )
        elif here.store is not None and here.signer is not None:
            request = make_request(outcome.output, name=name, meta=meta, parents=parents)
            result = await publish(here.store, here.signer, request, reporter)
        else:
            raise RuntimeError("nothing is open to publish with")
    seconds = time.perf_counter() - started
    console.event("published", **published_fields(result, seconds))
    for line in publish_summary(result, seconds):
        console.note(line)
    console.result(result.version.link())
