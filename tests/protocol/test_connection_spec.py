"""The numbers in connection.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from sbp2p_protocol import limits
from sbp2p_protocol.noise_suite import AESGCM_MESSAGES_MAX, NoiseSuite
from sbp2p_protocol.noise_transport import MESSAGE_MAX

SPEC = (Path(__file__).parents[2] / "protocol" / "connection.md").read_text(encoding="utf-8")

BOUNDS = {
    "multistream-select message": [limits.MULTISTREAM_MESSAGE_MAX],
    "proposals": [limits.MULTISTREAM_PROPOSALS_MAX],
    "bytes from a peer before": [limits.UPGRADE_MAX_BYTES],
    "handshake message": [limits.NOISE_HANDSHAKE_MESSAGE_MAX],
    "muxers": [limits.NOISE_MUXERS_MAX],
    "transport message": [MESSAGE_MAX],
    "identify message sent": [limits.IDENTIFY_SEND_MAX, limits.IDENTIFY_MESSAGE_MAX],
    "identify messages": [limits.IDENTIFY_MESSAGES_MAX],
    "addresses of a peer": [limits.IDENTIFY_ADDRESSES_MAX],
    "protocols of a peer": [limits.IDENTIFY_PROTOCOLS_MAX],
    "multiaddr": [limits.ADDRESS_MAX],
}


def test_the_table_of_bounds() -> None:
    section = SPEC.partition("## 12. Bounds")[2].partition("## 13")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE))
    for start, numbers in BOUNDS.items():
        (value,) = (value for name, value in rows.items() if re.match(rf"{start}\b", name))
        assert [int(number) for number in re.findall(r"\d+", value)] == numbers, start
    assert limits.PEER_RECORD_ADDRESSES_MAX == limits.IDENTIFY_ADDRESSES_MAX
    assert AESGCM_MESSAGES_MAX == 2**32


def test_the_bounds_of_perf() -> None:
    section = SPEC.partition("## 10. perf")[2].partition("## 11")[0]
    assert limits.PERF_DOWNLOAD_MAX == limits.PERF_UPLOAD_MAX == 2**34
    assert limits.PERF_RUN_S == 600
    assert limits.PERF_RUNS_MAX == 4
    assert (limits.PERF_BUDGET, limits.PERF_BUDGET_S) == (64 * 2**30, 3600)
    for words in ("above 2^34", "ten minutes", "four in all", "64 GiB in an hour"):
        assert " ".join(section.split()).count(words) == 1


def test_the_table_of_suites() -> None:
    for suite in NoiseSuite:
        name = suite.value.noise_name.decode()
        assert f"| `{suite.protocol_id}` | `{name}` |" in SPEC
