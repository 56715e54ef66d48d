"""Two system calls that the standard library lacks.

`os.posix_fallocate` is not what is wanted: where a filesystem cannot reserve (NFS before 4.2, FAT),
glibc makes up for it by writing into every 4 KiB of the file, which over a network takes hours.

Error cases: plain OSError; EOPNOTSUPP also where libc does not have the call at all.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Any


def fallocate(fd: int, offset: int, length: int) -> None:
    """Allocate a span of a file on disk, growing the file if need be."""
    _call("fallocate", ctypes.c_int(fd), ctypes.c_int(0), _off_t(offset), _off_t(length))


def syncfs(fd: int) -> None:
    """Bring everything written to the filesystem of `fd` to the disk."""
    _call("syncfs", ctypes.c_int(fd))


_off_t = ctypes.c_long  # as wide as off_t wherever a file of more than 2 GiB can be opened at all


@cache
def _function(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError):
        return None


def _call(name: str, *arguments: Any) -> None:
    function = _function(name)
    if function is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    while function(*arguments) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
