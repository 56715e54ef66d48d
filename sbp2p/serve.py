"""Serving one stream that the peer opened: agree on a protocol, run its handler, clean up.

A handler may fail in any way; its stream is reset and everything else goes on. What the peer or
the network did to the stream is logged quietly, anything else is a bug and logged as one. A handler
with a nursery of its own raises groups, which are taken apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.errors import RemoteProtocolError

from . import observe
from .negotiate import answer

if TYPE_CHECKING:
    from .handlers import HandlerTable
    from .stream import Stream

_STREAM_ENDS = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    RemoteProtocolError,
)
"""What ends a stream without anybody here having made a mistake."""


async def serve_stream(stream: Stream, handlers: HandlerTable, negotiate_timeout_s: float) -> None:
    """Run the handler of whatever protocol the peer asks for; raises only what cancels the task."""
    try:
        with trio.fail_after(negotiate_timeout_s):
            stream.protocol = await answer(stream, handlers.supports)
        await handlers.find(stream.protocol)(stream)
        await stream.aclose()
    except BaseException as error:
        stream.reset()
        rest = _report(stream, error)
        if rest is not None:
            raise rest from None


def _report(stream: Stream, error: BaseException) -> BaseException | None:
    """Log what is to be logged of `error`; return what must go on upwards."""
    failures: Exception | None
    rest: BaseException | None = None
    if isinstance(error, BaseExceptionGroup) and not isinstance(error, Exception):
        failures, rest = error.split(Exception)
    elif isinstance(error, Exception):
        failures = error
    else:
        return error
    bugs: BaseException | None = failures
    if isinstance(failures, _STREAM_ENDS):
        bugs = None
    elif isinstance(failures, BaseExceptionGroup):
        bugs = failures.split(_STREAM_ENDS)[1]
    if bugs is not None:
        observe.report_bug(f"the handler of {stream.protocol or 'no protocol yet'}", bugs)
    elif failures is not None:
        observe.report_stream_failed(stream, failures)
    return rest
