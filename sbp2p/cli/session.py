"""Runs a command's coroutine on trio, with the node or the store of the home opened around it.

Commands that only look at what is here open the store alone: they need neither the key nor its
passphrase, and listen to nobody.
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .failure import leaves
from .signals import Interrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sbp2p.config import NodeConfig
    from sbp2p.node import Node
    from sbp2p.store import Store
    from sbp2p.swarm import Gate
    from sbp2p_keys.identity import PrivateKey

    from .console import Console

T = TypeVar("T")

PASSPHRASE_VARIABLE: Final = "SBP2P_PASSPHRASE"  # noqa: S105  (its name, not its value)


def with_node(
    console: Console,
    body: Callable[[Node], Awaitable[int]],
    *,
    gate: Gate | None = None,
    config: NodeConfig | None = None,
    swarm_file: str | None = None,
) -> int:
    """Run `body` with the home's node and return the exit code."""
    from sbp2p.node import Node

    def attempt(passphrase: bytes | None) -> int:
        async def main() -> int:
            node = Node(
                home=console.home,
                passphrase=passphrase,
                gate=gate,
                config=config,
                swarm_file=swarm_file,
            )
            async with node:
                return await body(node)

        return run(console, main)

    return unlocked(console, attempt)


def with_store(console: Console, body: Callable[[Store], Awaitable[int]]) -> int:
    """Run `body` with the home's store and return the exit code."""
    from sbp2p.config import StoreConfig
    from sbp2p.node.home import Home
    from sbp2p.store import Store

    async def main() -> int:
        home = Home(console.home)
        home.create()
        with Store.open(home.path, StoreConfig()) as store:
            return await body(store)

    return run(console, main)


def with_signer(console: Console, body: Callable[[Store, PrivateKey], Awaitable[int]]) -> int:
    """Run `body` with the home's store and key, without a node, and return the exit code."""
    from sbp2p.config import StoreConfig
    from sbp2p.node.home import Home
    from sbp2p.store import Store

    def attempt(passphrase: bytes | None) -> int:
        async def main() -> int:
            home = Home(console.home)
            signer = home.identity(passphrase)
            with Store.open(home.path, StoreConfig()) as store:
                return await body(store, signer)

        return run(console, main)

    return unlocked(console, attempt)


def run(console: Console, main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end; a signal cancels it and is raised as Interrupted."""
    import trio

    # what is loaded by now stays: out of the collector's sight, 4 % of a transfer is saved
    gc.freeze()
    gc.enable()

    async def guarded() -> T:
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:
            with console.interrupts.cancelling(lambda: token.run_sync_soon(scope.cancel)):
                return await main()
        raise Interrupted

    return trio.run(guarded)


async def ask(console: Console, question: str) -> bool:
    """Ask a yes-or-no question while everything else goes on: pings of peers are answered."""
    import trio

    # as a mapping: the stubs of trio-typing, which come with multiaddr, know only the old name
    abandon: dict[str, Any] = {"abandon_on_cancel": True}
    return await trio.to_thread.run_sync(console.ask, question, **abandon)


def unlocked(console: Console, attempt: Callable[[bytes | None], T]) -> T:
    """Call `attempt` with the passphrase of the environment, or with one that is asked for.

    It is asked for only when the key turns out to need one and a terminal is there.
    """
    given = given_passphrase()
    try:
        return attempt(given)
    except BaseException as error:
        if given or not console.can_ask or not _lacks_passphrase(error):
            raise
    return attempt(console.ask_passphrase("passphrase of the key"))


def given_passphrase() -> bytes | None:
    """Return the passphrase of the environment, or None; an empty one is none."""
    return os.environb.get(PASSPHRASE_VARIABLE.encode()) or None


def _lacks_passphrase(error: BaseException) -> bool:
    from sbp2p_keys.errors import PassphraseRequiredError

    return any(
        isinstance(each, PassphraseRequiredError)
        for leaf in leaves(error)
        for each in (leaf, leaf.__cause__)
    )
