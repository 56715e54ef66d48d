"""What a codec is, how it is found, and how any update is decoded.

Theory of operation: a codec turns named tensors into other named tensors, which are published like
any checkpoint, and back. What is not the model itself has a description: one more tensor,
`sbp2p.update`, that says what the others are (`description.py`). An update without one is the
model as it is, so the default costs nothing and any reader of safetensors can use it.

A codec may be given the **parent**: a version that whoever decodes has as well, bit for bit. Lossy
codecs keep what they left out in a **feedback** state, and add it to what they are given next; so
over many updates nothing is lost (Seide and others 2014; Stich, Cordonnier, Jaggi 2018). When the
parent is what this codec made last time, what was left out is in the difference already, and the
feedback is not added again: the state knows the digest of its last result.

`encode` changes neither its arguments nor the state: the new state counts once the update was
published. Decoding is deterministic: every peer gets the bits of `Encoded.result`, and the
description's digest proves it.

| name | what it does | loses |
|---|---|---|
| `lossless` | nothing | nothing |
| `delta` | bits that differ from the parent; without one, what entropy coding saves | nothing |
| `fp16`, `bf16` | half precision | mantissa bits, fed back |
| `int8` | 8 bits a value and a scale for 256, of the difference to the parent if any | fed back |
| `topk:FRACTION` | the values that differ most from the parent, exactly | the others, fed back |

Third parties register codecs, or install them under the entry point group "sbp2p.codecs".

Error cases: an unknown name or option is a ConfigError. Whatever is wrong with a peer's update, or
with the parent that it needs, is a CheckpointError; nothing is allocated before the sizes that it
declares were checked.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, TypeAlias

from sbp2p.errors import CheckpointError, ConfigError
from sbp2p.merge.compress.description import DESCRIPTION, Description
from sbp2p_protocol.limits import CODEC_NAME_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sbp2p.checkpoint.reader import RawTensor
    from sbp2p.merge.compress.feedback import Feedback

ENTRY_POINTS: Final = "sbp2p.codecs"
"""The entry point group of third parties; an entry loads to a Factory."""

EXPANSION: Final = 64
"""How many times larger than the update, the parent left aside, a model may be, unless whoever
decodes says what it expects. Eight bits for a double make 8; long runs of zeros make more."""

EXPANSION_FREE: Final = 256 * 1024 * 1024
"""Bytes that any update may decode to."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One update.

    Attributes:
        tensors: what to publish, by name.
        result: what everybody will decode it to; the parent of the next update, if you like.
        state: what to give to the next `encode` once this was published; None if nothing is lost.
        metadata: text for the header of a safetensors file, for people: `codec`.
    """

    tensors: Mapping[str, RawTensor]
    result: Mapping[str, RawTensor]
    state: Feedback | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors to publish."""
        return sum(tensor.data.nbytes for tensor in self.tensors.values())


class Codec(ABC):
    """A way to make updates smaller; has no state of its own, and may be used by any thread."""

    lossy: bool = True
    """Whether `result` may differ from what was encoded."""
    uses_parent: bool = False
    """Whether a parent makes the update smaller."""
    shares_parent: bool = False
    """Whether the parent has to be one that all peers share, as what a round ended with: what an
    update leaves out is lost otherwise when a merge replaces the model (docs/compression.md)."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What `get_codec` makes this codec of, at most CODEC_NAME_MAX bytes."""

    @abstractmethod
    def encode(
        self,
        tensors: Mapping[str, RawTensor],
        parent: Mapping[str, RawTensor] | None = None,
        state: Feedback | None = None,
    ) -> Encoded:
        """Return the update that stands for `tensors`.

        Args:
            tensors: the model, by name.
            parent: a version that every decoder has, bit for bit.
            state: of the last update of this model; None at first.

        Raises:
            MergeError: a tensor is of a dtype that nobody knows, or not as long as its shape says.
        """

    @abstractmethod
    def decode(
        self,
        tensors: Mapping[str, RawTensor],
        parent: Mapping[str, RawTensor] | None = None,
        *,
        bytes_max: int | None = None,
    ) -> dict[str, RawTensor]:
        """Return the model that an update stands for; see `decode_update`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


Factory: TypeAlias = "Callable[[list[str]], Codec]"
"""Makes a codec of the options after its name; raises ConfigError, or ValueError."""

_MODULES: Final = {
    "lossless": "lossless",
    "delta": "lossless",
    "fp16": "casts",
    "bf16": "casts",
    "int8": "blockwise",
    "topk": "topk",
}
"""The built-in codecs and the modules that register them."""

_registered: dict[str, Factory] = {}


def register(name: str, factory: Factory) -> None:
    """Make a codec known by its name; raises ValueError when another one has it."""
    if ":" in name or _registered.setdefault(name, factory) is not factory:
        raise ValueError(f"{name!r} cannot name a codec, or names another one")


def names() -> list[str]:
    """Return the name of every codec that can be had, sorted."""
    installed = (entry.name for entry in entry_points(group=ENTRY_POINTS))
    return sorted({*_MODULES, *_registered, *installed})


def get_codec(text: str) -> Codec:
    """Return the codec that `NAME` or `NAME:OPTION...` means; raises ConfigError."""
    if len(text.encode(errors="replace")) > CODEC_NAME_MAX:
        raise ConfigError(f"{text[:80]!a}... is too long for a codec's name")
    name, *options = text.split(":")
    if name not in _registered:
        _load(name)
    try:
        return _registered[name](options)
    except ValueError as error:
        raise ConfigError(f"codec {text!a}: {error}") from error


def _load(name: str) -> None:
    if (module := _MODULES.get(name)) is not None:
        importlib.import_module(f"{__package__}.{module}")
        return
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            register(name, entry.load())
            return
    raise ConfigError(f"{name!a} is no codec", hint=f"there are {', '.join(names())}")


def is_encoded(tensors: Mapping[str, RawTensor]) -> bool:
    """Tell whether these tensors are an update that has to be decoded, and not a model."""
    return DESCRIPTION in tensors


def decode_update(
    tensors: Mapping[str, RawTensor],
    parent: Mapping[str, RawTensor] | None = None,
    *,
    bytes_max: int | None = None,
) -> dict[str, RawTensor]:
    """Return the model that an update stands for, whatever codec made it.

    Args:
        tensors: what a peer published.
        parent: the version that it was made from, decoded, if the description names one.
        bytes_max: the largest model that is expected; None allows EXPANSION times the update and
            the parent.

    Returns:
        tensors in memory of their own, or those of the arguments: do not change them.

    Raises:
        CheckpointError: the update is malformed, larger than allowed, made by a codec that is not
            installed, needs another parent, or does not decode to what its publisher meant.
    """
    if not is_encoded(tensors):
        check_size(sum(tensor.data.nbytes for tensor in tensors.values()), tensors, None, bytes_max)
        return dict(tensors)
    text = Description.read(tensors).codec
    try:
        codec = get_codec(text)
    except ConfigError as error:
        raise CheckpointError(f"an update by a codec that is not here: {error}") from error
    return codec.decode(tensors, parent, bytes_max=bytes_max)


def check_size(
    declared: int,
    tensors: Mapping[str, RawTensor],
    parent: Mapping[str, RawTensor] | None,
    bytes_max: int | None,
) -> None:
    """Raise CheckpointError if an update declares more bytes than it may decode to."""
    if bytes_max is None:
        have = sum(tensor.data.nbytes for tensor in tensors.values())
        base = sum(tensor.data.nbytes for tensor in (parent or {}).values())
        bytes_max = max(EXPANSION * have, EXPANSION_FREE) + base
    if declared > bytes_max:
        raise CheckpointError(f"an update that decodes to {declared} bytes: over {bytes_max}")
