"""Which names a file in a version may have, on every system that might fetch it.

Theory of operation: a version is written by one machine and read by many, so a name is allowed only
if Linux, macOS and Windows all store it as it is and none of them gives it a meaning: no way out
of the directory, no device, no stream, no letters that hide how the name reads, and nothing that
sbp2p keeps for its own files beside those of a version (RESERVED_PREFIX). The same rules hold when
publishing and on receipt. Two names in one directory that a case-insensitive or
normalising file system would merge are refused together.

Error cases: the checks return the reason as text, or None. Whoever asks raises: the publisher a
local error that names the file, the tree parser a RemoteProtocolError.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from sbp2p_protocol.limits import NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_DEPTH_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVED_PREFIX: Final = ".sbp2p"
"""Names that begin like this, in any case, are sbp2p's own: `.sbp2p/` holds what is being fetched.
A version with such a file could take the place of part files, or be taken for them."""

_WINDOWS_ONLY: Final = '<>:"|?*\\'
# as ranges and not by category, because implementations differ in their Unicode version; they hold
# categories Cc, Cf, Cs, Zl and Zp, and everything that Unicode says may be ignored when shown
_UNSAFE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u00ad\u034f"  # soft hyphen, grapheme joiner
    "\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2"  # Arabic and Syriac marks
    "\u115f-\u1160\u3164\uffa0"  # Hangul fillers
    "\u17b4-\u17b5\u180b-\u180f"  # Khmer and Mongolian
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f"  # zero width, bidirectional, deprecated
    "\u2028\u2029"  # line and paragraph separators
    "\u2800"  # a Braille cell without dots
    "\ud800-\udfff"  # surrogates: not text
    "\ufe00-\ufe0f\ufeff\ufff0-\ufffb"  # variations, byte order mark, annotations
    "\U000110bd\U000110cd\U00013430-\U0001343f"  # Kaithi, Egyptian
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # shorthand, music
    "\U000e0000-\U000e0fff"  # tags, variations
    "]"
)
_DEVICE: Final = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9\u00b9\u00b2\u00b3]) *(?:\.|\Z)",
    re.IGNORECASE | re.ASCII,
)


def check_name(name: str) -> str | None:
    """Return why `name` may not be a file or directory name, or None if it may."""
    if name == "":
        return "a name is empty"
    if name in (".", ".."):
        return f"{name!r} is not a name but a place"
    if "/" in name:
        return "a name contains '/'"
    if (unsafe := _UNSAFE.search(name)) is not None:
        return f"a name contains U+{ord(unsafe[0]):04X}, which does not show or misleads"
    for letter in _WINDOWS_ONLY:
        if letter in name:
            return f"a name contains {letter!r}, which Windows gives a meaning"
    if name[-1] in ". ":
        return "a name ends in a dot or a space, which Windows drops"
    if _DEVICE.match(name) is not None:
        return f"{name!r} is a device name on Windows"
    if (size := len(name.encode("utf-8"))) > NAME_BYTES_MAX:
        return f"a name of {size} bytes (at most {NAME_BYTES_MAX})"
    if is_reserved(name):
        return f"a name begins with {RESERVED_PREFIX!r}, which is for sbp2p's own files"
    return None


def is_reserved(name: str) -> bool:
    """Return whether a file system could take `name` for one of sbp2p's own files."""
    # no other letter becomes a dot; the key is not made for every name of a large version
    return name.startswith(".") and collision_key(name).startswith(RESERVED_PREFIX)


def check_path(path: str) -> str | None:
    """Return why `path` (names joined by '/') may not be in a version, or None if it may."""
    names = path.split("/")
    if len(names) > PATH_DEPTH_MAX:
        return f"a path of {len(names)} levels (at most {PATH_DEPTH_MAX})"
    for name in names:
        if (reason := check_name(name)) is not None:
            return reason
    if (size := len(path.encode("utf-8"))) > PATH_BYTES_MAX:
        return f"a path of {size} bytes (at most {PATH_BYTES_MAX})"
    return None


def collision_key(name: str) -> str:
    """Return a text that is equal for names which some file system takes for one another.

    Unicode's canonical caseless match (The Unicode Standard, section 3.13, D145).
    """
    decomposed = unicodedata.normalize("NFD", name)
    return unicodedata.normalize("NFD", decomposed.casefold())


def check_siblings(names: Iterable[str]) -> str | None:
    """Return why these names may not stand in one directory together, or None if they may."""
    seen: dict[str, str] = {}
    for name in names:
        key = collision_key(name)
        if key in seen:
            return f"{seen[key]!r} and {name!r} are one name on some file systems"
        seen[key] = name
    return None


def path_order(path: str) -> tuple[bytes, ...]:
    """Return the sort key of the order that files have in a version: name by name, bytewise."""
    return tuple(name.encode("utf-8") for name in path.split("/"))
