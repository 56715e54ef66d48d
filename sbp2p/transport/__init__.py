"""Dial and listen: raw byte streams over TCP and memory.

| module | what |
|---|---|
| `stream` | the contracts: raw stream, listener, transport, and how a dial fails |
| `tcp` | TCP over IPv4, IPv6 and names |
| `memory` | a network inside the process |
| `dial` | several addresses at once |
"""

from __future__ import annotations

from .dial import dial as dial
from .dial import dial_with as dial_with
from .memory import LinkProfile as LinkProfile
from .memory import MemoryNetwork as MemoryNetwork
from .stream import Bytes as Bytes
from .stream import DialError as DialError
from .stream import DialFailure as DialFailure
from .stream import Listener as Listener
from .stream import RawStream as RawStream
from .stream import Transport as Transport
from .stream import send_all_buffers as send_all_buffers
from .tcp import TcpTransport as TcpTransport
