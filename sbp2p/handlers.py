"""Which protocols this node serves, and with what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .stream import Stream

    StreamHandler: TypeAlias = Callable[[Stream], Awaitable[None]]


class ServesProtocols(Protocol):
    """Where a service registers: a swarm, or a bare handler table."""

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve `protocol` with `handler` from now on."""


class HandlerTable:
    """Protocol id to handler.

    A handler runs in a task of the stream's connection and is cancelled with it. When it returns
    the stream is closed; when it raises, the stream is reset.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, StreamHandler] = {}

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve `protocol` with `handler` from now on.

        Raises:
            ValueError: it is no protocol id, or has a handler already.
        """
        if not protocol.startswith("/"):
            raise ValueError(f"a protocol id begins with a slash: {protocol!r}")
        if protocol in self._handlers:
            raise ValueError(f"{protocol} is served already")
        self._handlers[protocol] = handler

    def withdraw(self, protocol: str) -> None:
        """Serve `protocol` no more; streams that are open stay. Nothing if it was not served."""
        self._handlers.pop(protocol, None)

    def supports(self, protocol: str) -> bool:
        """Return whether somebody serves `protocol`."""
        return protocol in self._handlers

    def find(self, protocol: str) -> StreamHandler:
        """Return the handler of a supported protocol."""
        return self._handlers[protocol]

    def protocols(self) -> tuple[str, ...]:
        """Return the ids of what is served, in the order of registration."""
        return tuple(self._handlers)
