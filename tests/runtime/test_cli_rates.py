from __future__ import annotations

import pytest

from sbp2p.cli.rates import Rates, parse_rate
from sbp2p.config import LimitsConfig
from sbp2p.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [
        ("5MB", 5_000_000),
        ("5 mB/s", 5_000_000),
        ("5MBps", 5_000_000),
        ("40Mbit", 5_000_000),
        ("40Mbit/s", 5_000_000),
        ("40Mbps", 5_000_000),
        ("1.5MiB", 1_572_864),
        (".5GB", 500_000_000),
        ("64kB", 64_000),
        ("64KiB", 65_536),
        ("1gbit", 125_000_000),
        ("4000B", 4_000),
        ("4000 bytes", 4_000),
    ],
)
def test_rates(text: str, bytes_s: float) -> None:
    assert parse_rate("--upload-limit", text) == bytes_s


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a rate"),
        ("5", "no unit"),
        ("5.5", "no unit"),
        ("MB", "not a rate"),
        ("-5MB", "not a rate"),
        ("5iB", "not a rate"),
        ("5TB", "not a rate"),
        ("nanMB", "not a rate"),
        ("5Mb", "may mean bits or bytes"),
        ("5mb/s", "may mean bits or bytes"),
        ("0MB", "less than"),
        ("3kB", "less than"),
        ("16kbit", "less than"),
    ],
)
def test_what_is_no_rate(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_rate("--upload-limit", text)
    assert str(caught.value).startswith("--upload-limit: ")
    assert caught.value.hint


def test_options_become_limits() -> None:
    assert Rates(None, None, None).parse() == LimitsConfig()
    assert Rates("5MB", "40Mbit", "1MB").parse() == LimitsConfig(
        upload_bytes_s=5e6, download_bytes_s=5e6, peer_upload_bytes_s=1e6
    )
