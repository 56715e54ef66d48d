from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.blocktable import BlockTable, BlockTableBuilder
from sbp2p_protocol.cid import raw_cid
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import WEB_SEEDS_MAX, WEB_URL_MAX
from sbp2p_protocol.web_seeds import (
    RangeCutter,
    WebRange,
    WebUrl,
    check_answer,
    is_later,
    is_public,
    parse_web_seed,
    plan_ranges,
    retry_after,
    web_seeds_of,
)

CID = raw_cid(bytes(32))


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("https://h.example/a/b", "https://h.example/a/b/x%20y/%231%25.bin"),
        ("https://h.example/a/b/", "https://h.example/a/b/x%20y/%231%25.bin"),
        ("http://h:8080", "http://h:8080/x%20y/%231%25.bin"),
        ("https://h:443/", "https://h/x%20y/%231%25.bin"),
        ("https://[2001:db8::1]:1/a", "https://[2001:db8::1]:1/a/x%20y/%231%25.bin"),
        (
            "https://huggingface.co/org/repo/resolve/main/",
            "https://huggingface.co/org/repo/resolve/main/x%20y/%231%25.bin",
        ),
    ],
)
def test_urls_of_files(text: str, file: str) -> None:
    assert parse_web_seed(text).file("x y/#1%.bin").text == file


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model",
        "file:///etc/passwd",
        "ftp://h/a",
        "javascript:alert(1)",
        "https:///a",
        "https://user@h/",
        "https://user:word@h/",
        "https://h/?a=1",
        "https://h/#a",
        "https://h/?",
        "https://h:0/",
        "https://h:65536/",
        "https://h:x/",
        "https://h/a b",
        "https://h/\n",
        "https://h/\u00e9",
        "https://\u00e9.example/",
        "https://h/../a",
        "https://h/%2E%2e/a",
        "https://h/%zz",
        "https://h\\@evil/",
        "https://[::1%25eth0]/",
        "https://[::1/",
        "https://-h/",
        "https://h/" + "a" * WEB_URL_MAX,
    ],
)
def test_what_is_no_web_seed(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_web_seed(text)


@given(st.text(max_size=60) | st.text("htps:/.@?#[]%\\a1 ", max_size=30))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    for head in ("", "https://h/"):
        try:
            url = parse_web_seed(head + text)
        except RemoteProtocolError:
            continue
        assert parse_web_seed(url.text) == url
        assert url.target.endswith("/")


def test_redirects() -> None:
    here = WebUrl("https", "h", 443, "/a/b.bin")
    assert here.redirect("/c?d=%20").text == "https://h/c?d=%20"
    assert here.redirect("c#x").text == "https://h/a/c"
    assert here.redirect("//other:1/c").text == "https://other:1/c"
    for bad in ("http://h/a", "file:///a", "https://u@h/", "", "https://h/\r\nX: y", "//:1/"):
        with pytest.raises(RemoteProtocolError):
            here.redirect(bad)
    assert WebUrl("http", "h", 80, "/a").redirect("https://h/").scheme == "https"


def test_web_seeds_of_a_manifest() -> None:
    text = "https://a/x file:///etc/ https://a/x/\nhttps://b/ nonsense"
    assert [url.text for url in web_seeds_of({"web_seeds": text})] == ["https://a/x/", "https://b/"]
    for meta in ({}, {"web_seeds": 5}, {"web_seeds": b"https://a/"}, {"web_seeds": ""}):
        assert web_seeds_of(meta) == ()
    many = " ".join(f"https://h{number}/" for number in range(100))
    assert len(web_seeds_of({"web_seeds": many})) == WEB_SEEDS_MAX


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.1"),
        *("100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1"),
        *("::", "::1", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
        *("2002:7f00:1::", "2002:a00:1::1", "not an address", ""),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


# -- ranges ----------------------------------------------------------------------------------------


def make_table(files: list[list[tuple[int, int]]]) -> BlockTable:
    builder = BlockTableBuilder()
    lengths: dict[int, int] = {}
    for number, blocks in enumerate(files):
        leaves = [
            (block.to_bytes(32, "big"), lengths.setdefault(block, length))
            for block, length in blocks
        ]
        builder.add_file(f"{number:03}", CID, leaves)
    return builder.build()


tables = st.lists(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 50)), max_size=12), min_size=1, max_size=5
).map(make_table)


@given(tables, st.data(), st.integers(1, 120), st.integers(0, 60))
def test_every_block_is_in_one_range(
    table: BlockTable, data: st.DataObject, most_bytes: int, most_gap: int
) -> None:
    wanted = data.draw(st.sets(st.sampled_from(range(len(table))) if len(table) else st.nothing()))
    ranges = plan_ranges(table, wanted, most_bytes=most_bytes, most_gap=most_gap)
    found = [index for each in ranges for index, _, _ in each.blocks]
    assert sorted(found) == sorted(wanted)
    for each in ranges:
        assert each.size <= most_bytes or len(each.blocks) == 1
        assert each.start == each.blocks[0][1]
        at = each.start
        for index, offset, length in each.blocks:
            assert (each.file, offset) == table.locations(index)[0]
            assert 0 <= offset - at <= most_gap
            at = offset + length
        assert at == each.stop
    for one, other in pairwise(ranges):
        assert (one.file, one.stop) <= (other.file, other.start)


@given(tables, st.data())
def test_blocks_are_cut_out_of_any_pieces(table: BlockTable, data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.sampled_from(range(len(table))) if len(table) else st.nothing()))
    size = max(file.size for file in table.files)
    content = bytes(number * 7 % 251 for number in range(size))
    for asked in plan_ranges(table, wanted, most_bytes=200, most_gap=30):
        cutter = RangeCutter(asked)
        body = content[asked.start : asked.stop]
        found: list[tuple[int, bytearray]] = []
        while body:
            count = data.draw(st.integers(1, len(body)))
            found += cutter.feed(body[:count])
            body = body[count:]
        assert cutter.missing == 0
        assert found == [(i, bytearray(content[at : at + size])) for i, at, size in asked.blocks]
        with pytest.raises(RemoteProtocolError, match="longer"):
            cutter.feed(b"x")


# -- answers ---------------------------------------------------------------------------------------

ASKED = WebRange(0, 100, 200, ((0, 100, 100),))


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (206, {"content-range": "bytes 100-199/1000", "content-length": "100"}),
        (206, {"content-range": "bytes 100-199/*"}),
        (206, {"content-range": "bytes 100-199/1000", "content-encoding": "Identity"}),
    ],
)
def test_answers_that_are_the_range(status: int, headers: dict[str, str]) -> None:
    check_answer(status, headers, ASKED, 1000)


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (200, {}, "ignores ranges"),
        (204, {}, "status 204"),
        (416, {}, "status 416"),
        (404, {}, "status 404"),
        (206, {}, "without Content-Range"),
        (206, {"content-range": "bytes 100-199/1000 "}, "without Content-Range"),
        (206, {"content-range": "bytes 100-199/99999999999999999999"}, "without Content-Range"),
        (206, {"content-range": "bytes 101-199/1000"}, "another range"),
        (206, {"content-range": "bytes 100-200/1000"}, "another range"),
        (206, {"content-range": "bytes 100-199/1001"}, "a file of 1001"),
        (206, {"content-range": "bytes 100-199/*", "content-encoding": "br"}, "encoded"),
        (206, {"content-range": "bytes 100-199/*", "content-length": "99"}, "a body of '99'"),
        (206, {"content-range": "bytes 100-199/*", "content-length": "-1"}, "a body of '-1'"),
        (206, {"content-type": "multipart/byteranges"}, "without Content-Range"),
    ],
)
def test_answers_that_are_not(status: int, headers: dict[str, str], reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        check_answer(status, headers, ASKED, 1000)


def test_a_whole_file_needs_no_range() -> None:
    check_answer(200, {"content-length": "100"}, WebRange(0, 0, 100, ()), 100)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_what_may_be_better_later(status: int) -> None:
    assert is_later(status)


@pytest.mark.parametrize(
    ("text", "seconds"), [("3", 3.0), ("100", 30.0), ("-1", 0.0), ("soon", 0.0), ("9" * 30, 0.0)]
)
def test_how_long_to_wait(text: str, seconds: float) -> None:
    assert retry_after({"retry-after": text}, 30.0) == seconds
    assert retry_after({}, 30.0) == 0.0


@given(st.dictionaries(st.sampled_from(["content-range", "content-length"]), st.text(max_size=30)))
def test_any_headers_are_taken_or_refused(headers: dict[str, Any]) -> None:
    try:
        check_answer(206, headers, ASKED, 1000)
    except RemoteProtocolError:
        return
    assert headers["content-range"].startswith("bytes 100-199/")
