"""Self-describing bytes: unsigned varint, multibase, multihash.

Theory of operation: each value has exactly one encoding, because encodings are hashed and signed.
Decoders therefore refuse what the encoder would not have produced, with one exception that
multibase asks for: base16, base32 and base36 text is read in either case.

Errors: BadEncodingError for input that is no encoding, TruncatedError where more bytes could still
complete it, plain ValueError for a caller that asks for the impossible (a negative varint).
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, NamedTuple

from .errors import BadEncodingError, TruncatedError
from .limits import BIG_BASE_TEXT_MAX, MULTIHASH_DIGEST_MAX, UVARINT_MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

BytesLike = bytes | bytearray | memoryview
"""Bytes of any owner; a memoryview must have items of one byte."""

IDENTITY: Final = 0x00
SHA2_256: Final = 0x12
BLAKE3: Final = 0x1E

_BASE36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_BASE58BTC: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

# -- unsigned varint -------------------------------------------------------------------------------


def encode_uvarint(n: int) -> bytes:
    """Encode 0 <= n < 2**63 in as few bytes as it takes."""
    if not 0 <= n < 1 << 63:
        raise ValueError(f"not an unsigned varint: {n}")
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def decode_uvarint(data: BytesLike, offset: int = 0) -> tuple[int, int]:
    """Return the value at `offset` and the offset behind it.

    Raises:
        TruncatedError: the data ends inside the varint; it is valid so far.
        BadEncodingError: it is longer than 9 bytes, or not the shortest encoding.
    """
    value = 0
    for index in range(UVARINT_MAX_BYTES):
        if offset + index >= len(data):
            raise TruncatedError("varint ends too early")
        byte = data[offset + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if byte == 0 and index > 0:
                raise BadEncodingError("varint is not minimal")
            return value, offset + index + 1
    raise BadEncodingError(f"varint is longer than {UVARINT_MAX_BYTES} bytes")


# -- multibase -------------------------------------------------------------------------------------


def base58btc_encode(data: BytesLike) -> str:
    """Encode bytes in Bitcoin's base58 alphabet, without a multibase prefix."""
    return _big_base_encode(data, _BASE58BTC)


def base58btc_decode(text: str) -> bytes:
    """Decode base58btc text without a multibase prefix; raises BadEncodingError."""
    return _big_base_decode(text, _BASE58BTC)


def multibase_encode(code: str, data: BytesLike) -> str:
    """Encode bytes in the base that the one-letter `code` names, prefix included."""
    return code + _base(code, ValueError).encode(bytes(data))


def multibase_decode(text: str) -> bytes:
    """Decode multibase text of any base known here; raises BadEncodingError."""
    code, body = text[:1], text[1:]
    base = _base(code, BadEncodingError)
    if base.fold is not None:
        # ASCII only: str.upper() maps some letters of other alphabets into ours.
        if not body.isascii():
            raise BadEncodingError(f"not base '{code}' text")
        body = base.fold(body)
    try:
        data = base.decode(body)
    except BadEncodingError:
        raise
    except ValueError:
        raise BadEncodingError(f"not base '{code}' text") from None
    # The standard library's decoders skip some foreign characters and ignore unused bits.
    if base.encode(data) != body:
        raise BadEncodingError(f"not canonical base '{code}' text")
    return data


class _Base(NamedTuple):
    encode: Callable[[bytes], str]
    decode: Callable[[str], bytes]
    fold: Callable[[str], str] | None = None


def _base(code: str, error: type[ValueError]) -> _Base:
    base = _BASES.get(code)
    if base is None:
        raise error(f"unknown multibase code {code!r}")
    return base


def _rfc4648(
    encode: Callable[[bytes], bytes],
    decode: Callable[[bytes], bytes],
    group: int,
    *,
    padded: bool = False,
    fold: Callable[[str], str] | None = None,
    lower: bool = False,
) -> _Base:
    """Build a base over one of the standard library's coders, `group` characters to a unit."""

    def to_text(data: bytes) -> str:
        text = encode(data).decode("ascii")
        if lower:
            text = text.lower()
        return text if padded else text.rstrip("=")

    def from_text(text: str) -> bytes:
        padding = "" if padded else "=" * (-len(text) % group)
        raw = (text.upper() if lower else text) + padding
        return decode(raw.encode("ascii"))

    return _Base(to_text, from_text, fold)


def _big_base_encode(data: BytesLike, alphabet: str) -> str:
    zeros = len(data) - len(bytes(data).lstrip(b"\0"))
    number = int.from_bytes(data, "big")
    digits = []
    while number:
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    return alphabet[0] * zeros + "".join(reversed(digits))


def _big_base_decode(text: str, alphabet: str) -> bytes:
    if len(text) > BIG_BASE_TEXT_MAX:
        raise BadEncodingError(f"text is longer than {BIG_BASE_TEXT_MAX} characters")
    number = 0
    for character in text:
        digit = alphabet.find(character)
        if digit < 0:
            raise BadEncodingError(f"{character!r} is not in the base{len(alphabet)} alphabet")
        number = number * len(alphabet) + digit
    zeros = len(text) - len(text.lstrip(alphabet[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


_BASES: Final[dict[str, _Base]] = {
    "f": _Base(bytes.hex, binascii.unhexlify, str.lower),
    "F": _Base(lambda data: data.hex().upper(), binascii.unhexlify, str.upper),
    "v": _rfc4648(base64.b32hexencode, base64.b32hexdecode, 8, fold=str.lower, lower=True),
    "V": _rfc4648(base64.b32hexencode, base64.b32hexdecode, 8, fold=str.upper),
    "t": _rfc4648(
        base64.b32hexencode, base64.b32hexdecode, 8, padded=True, fold=str.lower, lower=True
    ),
    "T": _rfc4648(base64.b32hexencode, base64.b32hexdecode, 8, padded=True, fold=str.upper),
    "b": _rfc4648(base64.b32encode, base64.b32decode, 8, fold=str.lower, lower=True),
    "B": _rfc4648(base64.b32encode, base64.b32decode, 8, fold=str.upper),
    "c": _rfc4648(base64.b32encode, base64.b32decode, 8, padded=True, fold=str.lower, lower=True),
    "C": _rfc4648(base64.b32encode, base64.b32decode, 8, padded=True, fold=str.upper),
    "k": _Base(
        lambda data: _big_base_encode(data, _BASE36),
        lambda text: _big_base_decode(text, _BASE36),
        str.lower,
    ),
    "K": _Base(
        lambda data: _big_base_encode(data, _BASE36).upper(),
        lambda text: _big_base_decode(text.lower(), _BASE36),
        str.upper,
    ),
    "z": _Base(base58btc_encode, base58btc_decode),
    "m": _rfc4648(base64.b64encode, base64.b64decode, 4),
    "M": _rfc4648(base64.b64encode, base64.b64decode, 4, padded=True),
    "u": _rfc4648(base64.urlsafe_b64encode, base64.urlsafe_b64decode, 4),
    "U": _rfc4648(base64.urlsafe_b64encode, base64.urlsafe_b64decode, 4, padded=True),
}

# -- multihash -------------------------------------------------------------------------------------


def multihash_encode(code: int, digest: BytesLike) -> bytes:
    """Return `uv(code) || uv(len) || digest`."""
    return encode_uvarint(code) + encode_uvarint(len(digest)) + bytes(digest)


def multihash_decode(data: BytesLike) -> tuple[int, bytes]:
    """Return the hash code and the digest of a multihash that fills `data` exactly.

    Any code and any digest length up to 128 are accepted: whether a hash is long enough is for the
    caller to say.

    Raises:
        BadEncodingError: bad varints, a digest that is too long, or bytes behind it.
        TruncatedError: the data ends inside the multihash.
    """
    code, offset = decode_uvarint(data)
    length, offset = decode_uvarint(data, offset)
    if length > MULTIHASH_DIGEST_MAX:
        raise BadEncodingError(f"multihash digest of {length} bytes is too long")
    digest = bytes(data[offset : offset + length])
    if len(digest) < length:
        raise TruncatedError("multihash ends too early")
    if len(data) > offset + length:
        raise BadEncodingError("bytes behind the multihash")
    return code, digest
