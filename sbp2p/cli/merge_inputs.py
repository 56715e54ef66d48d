"""What the inputs of `sbp2p merge` mean: links, paths and versions of this node, and their weights.

| text | taken as |
|---|---|
| begins with `sbp2p:` | a link: used from where it is if it is here whole, else fetched first |
| names a file or a folder | read in place |
| anything else | a version of this node: its CID or the beginning of it, NAME or NAME@VERSION |
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sbp2p.merge.files_model import ModelFiles
    from sbp2p.node import Node, Progress, TrustCallback, Version
    from sbp2p.store import Store
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.cid import Cid

    from .console import Console

FETCHED: Final = "inputs"
"""Folder of the home for versions that were fetched only to be merged."""


@dataclass(frozen=True, slots=True)
class Located:
    """One model and where it is."""

    text: str
    """As the user named it."""
    label: str
    """What reports call it."""
    files: ModelFiles
    cid: Cid | None = None
    """Its manifest, if it is a version."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """How links are fetched."""

    folder: Path
    """Each version gets a folder of its own below."""
    peers: tuple[str, ...]
    trust: TrustCallback
    progress: Callable[[Progress], None]


def is_link(text: str) -> bool:
    """Whether an input has to be asked of the network, or may have to."""
    return text.startswith("sbp2p:")


def is_path(text: str) -> bool:
    """Whether an input is a file or a folder."""
    return not is_link(text) and Path(text).exists()


def is_reference(text: str) -> bool:
    """Whether an input is a version of this node."""
    return not is_link(text) and not is_path(text)


def parse_weights(inputs: Sequence[str], texts: Sequence[str]) -> list[Fraction]:
    """Return the weight of each input; raises ConfigError.

    Args:
        inputs: as the user named them.
        texts: a number for each input, in their order; or INPUT=NUMBER for some, and 1 for others.
    """
    from sbp2p.errors import ConfigError

    named = [text.rpartition("=") for text in texts]
    if not any(mark for _, mark, _ in named):
        if texts and len(texts) != len(inputs):
            raise ConfigError(
                f"{len(inputs)} inputs and {len(texts)} weights",
                hint="give one --weight for each input in their order, or --weight INPUT=NUMBER",
            )
        return [_weight(text) for text in texts] or [Fraction(1)] * len(inputs)
    found: dict[str, Fraction] = {}
    for (name, mark, number), text in zip(named, texts, strict=True):
        if not mark or name not in inputs:
            raise ConfigError(
                f"--weight {text!r} names none of the inputs",
                hint="write the input as on the command line: --weight INPUT=NUMBER",
            )
        if name in found:
            raise ConfigError(f"--weight: {name!r} has two")
        found[name] = _weight(number)
    return [found.get(text, Fraction(1)) for text in inputs]


def _weight(text: str) -> Fraction:
    from sbp2p.errors import ConfigError

    try:
        weight = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"--weight: {text!r} is not a number", hint="such as 2, 0.25 or 1/3"
        ) from None
    if weight < 0:
        raise ConfigError(f"--weight: {text} is negative")
    return weight


def parse_options(texts: Sequence[str]) -> dict[str, object]:
    """Read KEY=VALUE texts; raises ConfigError.

    A value is a whole number, a decimal number, `true`, `false`, or else a text.
    """
    from sbp2p.errors import ConfigError

    options: dict[str, object] = {}
    for text in texts:
        key, mark, value = text.partition("=")
        key = key.replace("-", "_")
        if not mark or not key.isidentifier():
            raise ConfigError(f"--option {text!r} is not KEY=VALUE")
        if key in options:
            raise ConfigError(f"--option {key!r} is given twice")
        options[key] = _value(value)
    return options


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def locate_path(text: str) -> Located:
    """Return the model at a path."""
    from sbp2p.merge.files_model import ModelFiles

    return Located(text, text, ModelFiles(Path(text)))


def locate_version(store: Store, home: str | None, text: str, version: Version) -> Located:
    """Return a version that is here; raises NotFoundError, CheckpointError, TrustError."""
    from sbp2p.errors import CheckpointError
    from sbp2p.merge.files_model import ModelFiles
    from sbp2p.node.local import record_of

    title = f"{version.name} version {version.version}"
    if not version.complete:
        raise CheckpointError(
            f"{title} is not here whole, or its files in {version.path} have changed",
            hint="`sbp2p get` its link again with the same --to",
        )
    _require_not_refused(home, version)
    table = store.table(record_of(store, version))
    for number, file in enumerate(table.files):
        if file.path.endswith((".safetensors", ".gguf")):
            _require_unchanged(store, table, number, version.path / file.path)
    names = tuple(file.path for file in table.files)
    label = f"{title} by {str(version.publisher)[-8:]}"
    return Located(text, label, ModelFiles(version.path, names), version.cid)


def _require_unchanged(store: Store, table: BlockTable, number: int, path: Path) -> None:
    """Raise CheckpointError unless a file is the one that was published, or verified last."""
    from sbp2p.errors import CheckpointError
    from sbp2p.store.errors import os_errors

    with os_errors("look at", path):
        known = store.known_leaves(path, path.stat())
    blocks = table.file_blocks(number)
    if known is None or [digest for digest, _ in known] != [table.digest(n) for n, *_ in blocks]:
        raise CheckpointError(
            f"{path} has changed since its version was published or fetched",
            hint="`sbp2p verify` says whether it is still right; or merge the file by its path",
        )


def _require_not_refused(home: str | None, version: Version) -> None:
    """Raise TrustError for a publisher who is not to be relied on any more."""
    import time

    from sbp2p.errors import TrustError
    from sbp2p.node.home import Home
    from sbp2p_keys.trust import TrustVerdict

    if version.published_here:
        return
    now = int(time.time())  # noqa: TID251  (a date: revocations have one)
    decision = Home(home).trust().check(version.publisher, version.name, now)
    if decision.verdict is TrustVerdict.REFUSE:
        raise TrustError(
            f"the publisher {version.publisher} of {version.name} is not to be relied on: "
            f"{decision.reason}",
            hint="`sbp2p trust` shows who is accepted",
        )


async def fetch_link(node: Node, wish: Fetching, link: str) -> Version:
    """Return the version of a link: the one that is here whole, or as fetched now."""
    from sbp2p_protocol.link import ManifestLink, parse_link

    parsed = parse_link(link)
    if isinstance(parsed, ManifestLink):
        cid = parsed.manifest
    else:
        cid = (await node.resolve(parsed, peers=wish.peers)).manifest
    for version in node.versions():
        if version.cid == cid and version.complete:
            return version
    result = await node.fetch(
        parsed,
        to=wish.folder / str(cid),
        peers=wish.peers,
        pinned=False,
        trust=wish.trust,
        progress=wish.progress,
    )
    return result.version


async def locate(
    console: Console,
    text: str,
    store: Store | None,
    fetch: Callable[[str], Awaitable[Version]] | None,
) -> Located:
    """Return the model that a text means."""
    from sbp2p.node.local import find_version

    if is_link(text) and fetch is not None and store is not None:
        return locate_version(store, console.home, text, await fetch(text))
    if is_path(text) or store is None:
        return locate_path(text)
    return locate_version(store, console.home, text, find_version(store, text))
