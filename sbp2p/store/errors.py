"""What can go wrong on a disk, in words that say what to do next.

Rules: an OSError or sqlite3.Error never leaves the store. Each becomes a StoreError whose message
names the path and the cause and whose `hint` names the next step; the original is its `__cause__`.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sbp2p.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class BlockMismatchError(StoreError):
    """Bytes that were given for a block do not have its hash; nothing was written."""


class BlockUnavailableError(StoreError):
    """No file that the index knows holds this block any more: gone, changed or unreadable."""


class DestinationConflictError(StoreError):
    """Something else already lies where a file of a version belongs; it was not touched."""


class NoSpaceError(StoreError):
    """The filesystem is full, or a quota or size limit is reached."""


_RESUMES = "Every block that was committed is kept: the same command continues from there."

_HINTS = {
    errno.ENOSPC: f"Free some space. {_RESUMES}",
    errno.EDQUOT: f"The disk quota is used up: free some space or raise it. {_RESUMES}",
    errno.EFBIG: "The filesystem or the process limit (ulimit -f) does not allow a file this big.",
    errno.EIO: f"The disk or its cable is failing: check the system log. {_RESUMES}",
    errno.EROFS: "The filesystem is mounted read-only: choose another folder, or remount it.",
    errno.EACCES: "Check who owns the folder and its permissions, or choose another one.",
    errno.EPERM: "Check who owns the folder and its permissions, or choose another one.",
    errno.ENOTDIR: "A file lies where a folder is needed: move it away, or choose another folder.",
    errno.EEXIST: "A file lies where a folder is needed: move it away, or choose another folder.",
    errno.EISDIR: "A folder lies where a file is needed: move it away, or choose another folder.",
    errno.ENAMETOOLONG: "The filesystem allows no name this long: choose a shorter folder.",
    errno.ENOENT: "It was moved or deleted, or its disk is not mounted.",
    errno.ELOOP: "A symlink lies where a folder or file is needed: replace it by the real thing.",
    errno.EMFILE: "Too many open files: raise the limit (ulimit -n).",
    errno.EXDEV: "A folder inside the destination is another filesystem: choose one below it.",
    errno.ENOLCK: "This filesystem has no file locks: choose a folder on a local disk.",
    errno.EOPNOTSUPP: "This filesystem cannot do that: choose a folder on a local disk.",
}

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def store_error(error: OSError, doing: str, path: Path | str | bytes) -> StoreError:
    """Put an OSError into words; raise the result `from error`.

    Args:
        error: what the system call said.
        doing: a verb phrase that follows "cannot", such as "write to".
        path: what it was done to.
    """
    code = error.errno or 0
    reason = (error.strerror or str(error)).lower()
    kind = NoSpaceError if code in _FULL else StoreError
    return kind(f"cannot {doing} {os.fsdecode(path)}: {reason}", hint=_HINTS.get(code, ""))


@contextmanager
def os_errors(doing: str, path: Path | str | bytes) -> Iterator[None]:
    """Turn an OSError inside the block into a StoreError (see `store_error`)."""
    try:
        yield
    except OSError as error:
        raise store_error(error, doing, path) from error
