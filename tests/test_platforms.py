"""Nothing that only Linux has is called without a way out: sbp2p runs on macOS, too.

What cannot be tried on the machine that runs the tests is at least looked for in the sources: a
name of a module of the standard library that Python does not have on macOS may be asked for by
`getattr` or after a `hasattr`, but not just used.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LINUX_ONLY = {
    "os": {
        *("fdatasync", "posix_fadvise", "posix_fallocate", "copy_file_range", "splice", "pipe2"),
        *("memfd_create", "eventfd", "getrandom", "getxattr", "setxattr", "listxattr"),
        *("sched_getaffinity", "sched_setaffinity", "pidfd_open", "unshare", "setns"),
        *("O_TMPFILE", "O_PATH", "O_NOATIME", "O_DIRECT", "O_LARGEFILE", "O_RSYNC"),
        *("RWF_DSYNC", "RWF_HIPRI", "RWF_NOWAIT", "RWF_SYNC", "RWF_APPEND", "EFD_CLOEXEC"),
    },
    "socket": {
        *("TCP_NOTSENT_LOWAT", "TCP_QUICKACK", "TCP_CORK", "TCP_USER_TIMEOUT", "TCP_DEFER_ACCEPT"),
        *("TCP_CONGESTION", "TCP_KEEPIDLE", "TCP_INFO", "SO_PEERCRED", "SO_BINDTODEVICE"),
        *("SO_MARK", "SO_PRIORITY", "SO_DOMAIN", "SO_PROTOCOL", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
        *("MSG_MORE", "MSG_ZEROCOPY", "MSG_CMSG_CLOEXEC", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"),
    },
    "fcntl": {
        *("F_OFD_SETLK", "F_OFD_SETLKW", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS"),
        *("F_NOTIFY", "F_SETLEASE", "FICLONE"),
    },
    "select": {"epoll", "EPOLLIN", "EPOLLOUT"},
    "signal": {"sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGPWR", "pidfd_send_signal"},
    "resource": {"prlimit", "RLIMIT_SIGPENDING", "RUSAGE_THREAD"},
    "time": {"CLOCK_BOOTTIME", "clock_settime"},
}
"""By module, what its documentation says is on Linux and not on macOS."""

SOURCES = sorted(
    path
    for folder in ("sbp2p", "protocol", "keys", "benchmarks", "scripts")
    for path in (ROOT / folder).rglob("*.py")
)


def unguarded(source: str) -> set[str]:
    """Return the Linux-only names that a module uses and never asks about."""
    used: set[str] = set()
    asked: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in LINUX_ONLY.get(node.value.id, ()):
                used.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom):
            names = {each.name for each in node.names} & LINUX_ONLY.get(node.module or "", set())
            used |= {f"{node.module}.{name}" for name in names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr":
            asked.add(".".join(ast.unparse(each).strip("'") for each in node.args))
    return used - asked


def test_the_search_finds_what_it_should() -> None:
    assert unguarded("import os\nos.fdatasync(1)") == {"os.fdatasync"}
    assert unguarded("from os import splice") == {"os.splice"}
    assert unguarded("import os\nif hasattr(os, 'pipe2'):\n    os.pipe2(0)") == set()
    assert unguarded("import os\ngetattr(os, 'fdatasync', os.fsync)(1)") == set()


def test_no_call_is_linux_only() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in SOURCES
        for name in unguarded(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize("folder", ["sbp2p", "protocol", "keys"])
def test_the_product_reads_nothing_from_proc(folder: str) -> None:
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert not [name for name, text in texts.items() if '"/proc' in text or '"/sys/' in text]
