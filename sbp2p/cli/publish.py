"""`sbp2p publish`: sign a checkpoint as a version."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from .console import Settings
from .invocation import Invocation
from .options import (  # noqa: TC001  (typer evaluates annotations)
    Home,
    Json,
    ModelName,
    Quiet,
    Verbose,
)
from .text import format_bytes, format_count, format_duration, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.node.publishing import PublishResult
    from sbp2p.store import Store
    from sbp2p_keys.identity import PrivateKey
    from sbp2p_protocol.cid import Cid

    from .console import Console


def command(
    path: Annotated[
        str, Argument(metavar="PATH", help="A checkpoint: a file, or a directory of files.")
    ],
    name: ModelName = None,
    version: Annotated[
        int | None,
        Option(
            "--version",
            metavar="N",
            help="The version's number. Default: one more than the last.",
            show_default=False,
        ),
    ] = None,
    meta: Annotated[
        list[str] | None,
        Option(
            "--meta",
            metavar="KEY=VALUE",
            help="A fact to sign along. Repeatable.",
            show_default=False,
        ),
    ] = None,
    parent: Annotated[
        list[str] | None,
        Option(
            "--parent",
            metavar="LINK",
            help="A version that this one was made from: link, CID, or a REF of this node. "
            "Repeatable. The previous version always is one.",
            show_default=False,
        ),
    ] = None,
    web_seed: Annotated[
        list[str] | None,
        Option(
            "--web-seed",
            metavar="URL",
            help="A folder on a web server that has the same files, for readers who find no peer. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Hash a checkpoint where it lies and sign it as a version; print its link."""
    work = partial(
        _run,
        path=path,
        name=name,
        number=version,
        meta=meta or (),
        parents=parent or (),
        web_seeds=web_seed or (),
    )
    return Invocation(Settings(home, json, quiet, verbose), work)


def _run(
    console: Console,
    *,
    path: str,
    name: str | None,
    number: int | None,
    meta: Sequence[str],
    parents: Sequence[str],
    web_seeds: Sequence[str],
) -> int:
    from .progress import Reporter
    from .session import with_signer

    facts = parse_meta(meta)
    if web_seeds:
        facts |= _web_seeds(web_seeds, facts)
    console.resume_hint = "nothing was published; run the same command again"

    async def body(store: Store, signer: PrivateKey) -> int:
        # no node is opened: signing needs no network, whose modules are half of a cold start
        from sbp2p.node.publishing import make_request, publish

        started = time.perf_counter()
        request = make_request(
            path,
            name=name,
            version=number,
            meta=facts,
            parents=[_parent(store, text) for text in parents],
        )
        with Reporter(console, events=False) as reporter:
            result = await publish(store, signer, request, reporter)
        seconds = time.perf_counter() - started
        console.event("published", **published_fields(result, seconds))
        for line in summary(result, seconds):
            console.note(line)
        console.result(result.version.link())
        return 0

    return with_signer(console, body)


def parse_meta(facts: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE texts; raises ConfigError."""
    from sbp2p.errors import ConfigError

    meta: dict[str, str] = {}
    for fact in facts:
        key, equals, value = fact.partition("=")
        if not equals or not key:
            raise ConfigError(f"--meta {fact!r} is not KEY=VALUE")
        if key in meta:
            raise ConfigError(f"--meta {key!r} is given twice")
        meta[key] = value
    return meta


def _web_seeds(texts: Sequence[str], facts: dict[str, str]) -> dict[str, str]:
    """Return URLs as the fact that readers look for; raises ConfigError."""
    from sbp2p.errors import ConfigError
    from sbp2p_protocol.errors import RemoteProtocolError
    from sbp2p_protocol.web_seeds import META_KEY, parse_web_seed, web_seeds_of

    if META_KEY in facts:
        raise ConfigError(f"--meta {META_KEY} and --web-seed say the same")
    try:
        urls = [parse_web_seed(text).text for text in texts]
    except RemoteProtocolError as error:
        raise ConfigError(f"--web-seed: {error}") from error
    fact = {META_KEY: " ".join(urls)}
    if len(web_seeds_of(fact)) < len(set(urls)):
        raise ConfigError(f"{len(urls)} web seeds are more than readers ask")
    return fact


def _parent(store: Store, text: str) -> Cid:
    """Return the manifest that a link, a CID or a reference means."""
    from sbp2p.errors import ConfigError
    from sbp2p.node.local import find_version
    from sbp2p_protocol.cid import BadCidError, Cid
    from sbp2p_protocol.link import ManifestLink, parse_link

    if text.startswith("sbp2p:"):
        link = parse_link(text)
        if not isinstance(link, ManifestLink):
            raise ConfigError(
                f"{text} does not say which version is the parent",
                hint="give the link with its manifest, which `sbp2p inspect LINK` shows",
            )
        return link.manifest
    try:
        return ManifestLink(Cid.parse(text)).manifest
    except BadCidError:
        return find_version(store, text).cid


def published_fields(result: PublishResult, seconds: float) -> dict[str, Any]:
    """Return a published version as the fields of a JSON event."""
    version = result.version
    return {
        "link": version.link(),
        "cid": str(version.cid),
        "name": version.name,
        "version": version.version,
        "publisher": str(version.publisher),
        "size": version.size,
        "files": version.files,
        "tensors": result.tensors,
        "blocks": result.blocks,
        "seconds": round(seconds, 6),
        "unchanged": result.unchanged,
        "notes": list(result.notes),
    }


def summary(result: PublishResult, seconds: float) -> list[str]:
    """Return what was published, for people."""
    version = result.version
    did = "unchanged since" if result.unchanged else "published"
    amounts = [format_bytes(version.size), format_count(version.files, "file")]
    if result.tensors:
        amounts.append(format_count(result.tensors, "tensor"))
    amounts.append(format_count(result.blocks, "block"))
    notes = [f"note: {printable(note)}" for note in result.notes]
    name = printable(f"{version.name} version {version.version}")
    return [*notes, f"{did} {name}: {', '.join(amounts)}, in {format_duration(seconds)}"]
