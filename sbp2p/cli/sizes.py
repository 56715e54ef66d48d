"""Sizes as people write them: `200GB`, `1.5 TiB`, `0`."""

from __future__ import annotations

import re
from typing import Final

_PREFIXES: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)


def parse_size(option: str, text: str) -> int:
    """Return a size in bytes; raises ConfigError that names the option."""
    from sbp2p.errors import ConfigError

    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ConfigError(
            f"{option}: {text!r} is not a size", hint="give bytes, such as 200GB, 1.5TiB or 0"
        )
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _PREFIXES[match[2].lower()])
