"""Targets of web seeds: URLs, and the heads of answers."""

from __future__ import annotations

from typing import Final

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import WEB_URL_MAX
from sbp2p_protocol.web_seeds import (
    WebRange,
    WebUrl,
    check_answer,
    parse_web_seed,
    retry_after,
    web_seeds_of,
)

from .engine import Target
from .expect import Refused, attempt, expect, expect_equal

_HERE: Final = WebUrl("https", "h.example", 443, "/a/b")
_ASKED: Final = WebRange(0, 100, 200, ((0, 100, 100),))


def _url(data: bytes) -> None:
    text = data.decode("latin-1")
    url = attempt(RemoteProtocolError, parse_web_seed, text)
    if not isinstance(url, Refused):
        expect_equal(parse_web_seed(url.text), url, "read again")
        expect(url.file("x/y").text.startswith(url.text), "a file outside the folder")
    moved = attempt(RemoteProtocolError, _HERE.redirect, text)
    if not isinstance(moved, Refused):
        expect(moved.scheme == "https", "from https to http")
        expect(all("!" <= letter <= "~" for letter in moved.target), "a target with spaces")
    expect(len(web_seeds_of({"web_seeds": text})) <= 16, "too many web seeds")


def _head(data: bytes) -> None:
    lines = [line.partition(b":") for line in data.split(b"\n")]
    headers = {
        name.decode("latin-1").lower(): value.strip().decode("latin-1") for name, _, value in lines
    }
    expect(0.0 <= retry_after(headers, 30.0) <= 30.0, "a wait beyond the bound")
    for status in (200, 206):
        attempt(RemoteProtocolError, check_answer, status, headers, _ASKED, 1000)


TARGETS: Final = (
    Target(
        name="web_url",
        modules=("sbp2p_protocol.web_seeds",),
        check=_url,
        seeds=lambda: [
            b"https://h.example/a/b/",
            b"http://[2001:db8::1]:8080/x%20y",
            b"//other/../c?d=1#e",
            b"https://u:p@h/ file:///etc/",
        ],
        max_size=WEB_URL_MAX + 10,
    ),
    Target(
        name="web_head",
        modules=("sbp2p_protocol.web_seeds",),
        check=_head,
        seeds=lambda: [
            b"Content-Range: bytes 100-199/1000\nContent-Length: 100",
            b"Content-Range: bytes 100-199/*\nContent-Encoding: gzip\nRetry-After: 5",
        ],
        max_size=1024,
    ),
)
