"""`sbp2p doctor`: why this node cannot be reached, or cannot find anyone or anything."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

from .console import Settings
from .finding import Finding
from .invocation import Invocation
from .options import (  # noqa: TC001  (typer evaluates annotations)
    Bootstrap,
    Home,
    Json,
    Listen,
    Network,
    NoLan,
    Quiet,
    Verbose,
)
from .text import columns, printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sbp2p.node import Node
    from sbp2p.node.diagnosis import Verdict
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.link import Link
    from sbp2p_protocol.multiaddr import Address

    from .console import Console

SICK: Final = 10
"""The exit code when something is bad."""
_WAIT_S: Final = 5.0
_SETTLE_S: Final = 2.5
"""Longer than two connections count as made at the same time, of which the swarm gives up one."""
_CONNECTIONS: Final = 4
"""Peers that are connected to if so many are known: as many as decide about reachability."""


def command(
    target: Annotated[
        str | None,
        Argument(
            metavar="[LINK|PEER|ADDRESS]",
            help="Also find out what is wrong with this link, peer id or address.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        float,
        Option("--wait", metavar="SECONDS", min=0.1, help="How long each check may take."),
    ] = _WAIT_S,
    listen: Listen = None,
    bootstrap: Bootstrap = None,
    no_lan: NoLan = False,
    network: Network = None,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Tell why this node cannot be reached or cannot find anyone, and what to do about it."""
    work = partial(
        _run,
        target=target,
        wait_s=wait,
        listen=listen or (),
        finding=Finding(tuple(bootstrap or ()), no_lan, network),
    )
    return Invocation(Settings(home, json, quiet, verbose), work)


def _run(
    console: Console,
    *,
    target: str | None,
    wait_s: float,
    listen: Sequence[str],
    finding: Finding,
) -> int:
    from dataclasses import replace

    from sbp2p.config import NodeConfig
    from sbp2p.node.diagnosis import check_key, check_machine
    from sbp2p.node.home import Home as NodeHome

    from .session import given_passphrase, with_node

    wanted = None if target is None else _parse(target)
    discovery = replace(
        finding.discovery(stays=False),
        autonat_settle_s=_SETTLE_S,
        autonat_ask_s=0.2,
        wanted_connections=_CONNECTIONS,
    )
    report = _Report(console)
    home = NodeHome(console.home)
    verdict, key = check_key(home, given_passphrase())
    report.add(verdict)
    if key is None:
        return report.end()
    now = time.time()  # noqa: TID251  (it is the clock that is looked at)
    report.add(*check_machine(home, now))

    async def body(node: Node) -> int:
        await _look(node, report, wanted, listen, discovery.bootstrap, wait_s, now)
        return report.end()

    config = NodeConfig(discovery=discovery, dht=finding.dht())
    return with_node(console, body, config=config)


async def _look(
    node: Node,
    report: _Report,
    target: Link | PeerId | Address | None,
    listen: Sequence[str],
    bootstrap: Sequence[str],
    wait_s: float,
    now: float,
) -> None:
    import trio

    from sbp2p.discovery import parse_bootstrap
    from sbp2p.node import diagnosis
    from sbp2p.node.diagnosis_peer import check_target

    report.add(diagnosis.check_identity(node))
    report.add(*await _listen(node, listen), *diagnosis.check_addresses(node))
    known = parse_bootstrap(bootstrap)
    groups: list[list[Verdict]] = [[], [], []]

    async def keep(place: int, check: Callable[[], Awaitable[list[Verdict]]]) -> None:
        groups[place] = await check()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, 0, partial(diagnosis.check_bootstrap, node, known, wait_s))
        nursery.start_soon(keep, 1, partial(diagnosis.check_lan, node, wait_s))
    report.add(*groups[0], *groups[1])
    report.add(await diagnosis.check_dht(node, wait_s))
    report.add(await diagnosis.check_reachability(node, wait_s))
    report.add(*diagnosis.check_peers_clocks(node, now))
    if target is not None:
        report.add(*await check_target(node, target, wait_s))


async def _listen(node: Node, addresses: Sequence[str]) -> list[Verdict]:
    """Listen where told, or where `sbp2p seed` would, and say what is in the way."""
    from sbp2p.errors import ConfigError
    from sbp2p.node.diagnosis import bad, ok, warn

    from .serving import ANY_HOSTS, DEFAULT_PORT, listen_on

    failures: list[ConfigError] = []
    for text in addresses or [f"{host}/tcp/{DEFAULT_PORT}" for host in ANY_HOSTS]:
        try:
            await listen_on(node, text)
        except ConfigError as error:
            failures.append(error)
    if addresses:
        return [bad("port", str(error), error.hint) for error in failures]
    if not failures:
        return [ok("port", f"{DEFAULT_PORT} is free")]
    for host in ANY_HOSTS:  # a machine may lack IPv4 or IPv6
        with suppress(ConfigError):
            await listen_on(node, f"{host}/tcp/0")
    if node.ephemeral:
        return [ok("port", f"{DEFAULT_PORT} is in use, and another process runs as this node")]
    step = "see which program has it; until then a free port is taken, another each time"
    return [warn("port", str(error), step) for error in failures]


def _parse(text: str) -> Link | PeerId | Address:
    """Read what is to be looked at; raises ConfigError."""
    from sbp2p.errors import ConfigError
    from sbp2p_keys.errors import KeysError
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.link import parse_link
    from sbp2p_protocol.multiaddr import parse_address

    if text.startswith("sbp2p:"):
        return parse_link(text)
    if text.startswith("/"):
        address = parse_address(text)
        if not address.is_dialable:
            raise ConfigError(f"{text} cannot be dialled", hint="only plain TCP addresses can")
        return address
    try:
        return PeerId.parse(text)
    except KeysError as error:
        raise ConfigError(
            f"{text!r} is no link, peer id or address",
            hint="links begin with sbp2p:, addresses with a slash, peer ids with 12D3Koo",
        ) from error


class _Report:
    """Findings, told as they are made."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._counts = {"ok": 0, "warn": 0, "bad": 0}

    def add(self, *verdicts: Verdict) -> None:
        """Tell of findings."""
        for each in verdicts:
            level = each.level.value
            self._counts[level] += 1
            fields: dict[str, Any] = {"text": each.text, "next": each.next_step}
            self._console.event("finding", topic=each.topic, level=level, **fields)
            if level == "ok" and self._console.settings.quiet:
                continue
            (line,) = columns([(level.ljust(4), each.topic.ljust(11), printable(each.text))])
            self._console.result(line)
            if each.next_step:
                self._console.result(f"{'':19}{printable(each.next_step)}")

    def end(self) -> int:
        """Sum up; return the exit code."""
        self._console.event("doctor", **self._counts)
        self._console.note(
            f"{self._counts['bad']} bad, {self._counts['warn']} to look at, "
            f"{self._counts['ok']} as they should be"
        )
        return SICK if self._counts["bad"] else 0
