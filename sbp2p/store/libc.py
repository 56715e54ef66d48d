"""System calls that the standard library lacks.

`os.posix_fallocate` is not what is wanted: where a filesystem cannot reserve (NFS before 4.2, FAT),
glibc makes up for it by writing into every 4 KiB of the file, which over a network takes hours.

Error cases: plain OSError; EOPNOTSUPP also where libc does not have the call at all.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any, Final


def fallocate(fd: int, offset: int, length: int) -> None:
    """Allocate a span of a file on disk, growing the file if need be."""
    _call("fallocate", ctypes.c_int(fd), ctypes.c_int(0), _off_t(offset), _off_t(length))


def close_file(fd: int) -> None:
    """Close a descriptor. An error is of no use: it is closed all the same, and what has to be on
    the disk was synced before."""
    with suppress(OSError):
        os.close(fd)


def start_writeback(fd: int, offset: int, length: int) -> None:
    """Let the kernel begin to write a span to the disk, so that a later sync has less to wait for.

    It waits for nothing, promises nothing, and takes no write error away from that sync.
    """
    span = (ctypes.c_int(fd), ctypes.c_int64(offset), ctypes.c_int64(length))
    _call("sync_file_range", *span, ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


def sync_data(fd: int) -> None:
    """Bring a file's bytes to the disk, and what is needed to find them."""
    if sys.platform == "darwin":  # whose fsync leaves them in the drive's cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        getattr(os, "fdatasync", os.fsync)(fd)


def syncfs(fd: int) -> None:
    """Bring everything written to the filesystem of `fd` to the disk."""
    _call("syncfs", ctypes.c_int(fd))


_SYNC_FILE_RANGE_WRITE: Final = 2
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
