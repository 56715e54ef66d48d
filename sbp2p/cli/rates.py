"""Rates as people write them: `5MB`, `40Mbit`, `500 kB/s`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sbp2p.config import LimitsConfig

RATE_MIN: Final = 4000
"""Bytes a second. A peer that gets less than 16 KiB in 10 s takes this node for one that has
stalled (protocol/exchange.md, section 6)."""

_PREFIXES: Final = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([kKmMgG]?i?)(bits?|bps|bytes?|B|Bps|b)(?:/s)?")
_EXAMPLES: Final = "give bytes or bits a second, such as 5MB, 500kB, 1.5MiB or 40Mbit"


def parse_rate(option: str, text: str) -> float:
    """Return a rate in bytes a second; raises ConfigError that names the option."""
    from sbp2p.errors import ConfigError

    match = _RATE.fullmatch(text.strip())
    number, prefix, unit = match.groups() if match is not None else ("", "i", "")
    if prefix.lower() not in _PREFIXES:
        what = "has no unit" if re.fullmatch(r"[\d.]+", text.strip()) else "is not a rate"
        raise ConfigError(f"{option}: {text!r} {what}", hint=_EXAMPLES)
    if unit == "b":
        raise ConfigError(f"{option}: {text!r} may mean bits or bytes", hint=_EXAMPLES)
    rate = float(number) * _PREFIXES[prefix.lower()]
    if unit.startswith("bit") or unit == "bps":
        rate /= 8
    if rate < RATE_MIN:
        raise ConfigError(
            f"{option}: {text!r} is less than {RATE_MIN // 1000} kB a second",
            hint="peers would take this node for one that has stalled; "
            "--role leech sends nothing, --role seed receives nothing",
        )
    return rate


@dataclass(frozen=True, slots=True)
class Rates:
    """What the limit options say, as text."""

    upload: str | None
    download: str | None
    peer_upload: str | None

    def parse(self) -> LimitsConfig:
        """Return the limits; raises ConfigError."""
        from sbp2p.config import LimitsConfig

        return LimitsConfig(
            upload_bytes_s=_rate("--upload-limit", self.upload),
            download_bytes_s=_rate("--download-limit", self.download),
            peer_upload_bytes_s=_rate("--peer-upload-limit", self.peer_upload),
        )


def _rate(option: str, text: str | None) -> float | None:
    return None if text is None else parse_rate(option, text)
