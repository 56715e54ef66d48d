"""Bits that differ: whatever the tensor, the payload is short and comes back whole."""

from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.errors import CheckpointError
from sbp2p.merge.compress.bits import CHUNK, pack_bits, pack_frame, unpack_bits


def noise(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count,), generator=generator, dtype=torch.uint8)


def changed(base: torch.Tensor, width: int, share: float, seed: int = 1) -> torch.Tensor:
    """Return a copy in which some elements have another lowest byte."""
    generator = torch.Generator().manual_seed(seed)
    result = base.clone().view(-1, width)
    chosen = torch.rand(result.shape[0], generator=generator) < share
    result[chosen, 0] ^= torch.randint(1, 4, (int(chosen.sum()),), generator=generator).to(
        torch.uint8
    )
    return result.view(-1)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 400),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.95, 1.0]),
    st.integers(0, 1000),
    st.booleans(),
)
def test_any_bits_come_back(
    elements: int, width: int, share: float, seed: int, has_parent: bool
) -> None:
    base = noise(elements * width, seed)
    new = changed(base, width, share, seed)
    old = base if has_parent else None
    payload = memoryview(pack_bits(new, old, width))
    assert torch.equal(unpack_bits(payload, old, elements * width, width), new)
    assert torch.equal(base, noise(elements * width, seed)), "the parent is not changed"
    for cut in range(0, len(payload), max(1, len(payload) // 7)):
        with pytest.raises(CheckpointError):
            unpack_bits(payload[:cut], old, elements * width, width)
    with pytest.raises(CheckpointError):
        unpack_bits(memoryview(bytes(payload) + b"\x00"), old, elements * width, width)


@pytest.mark.parametrize(
    ("share", "most"), [(0.0, 0.001), (0.001, 0.0016), (0.01, 0.008), (0.2, 0.08), (1.0, 0.2)]
)
def test_how_short_a_payload_is(share: float, most: float) -> None:
    base = noise(200_000)
    payload = pack_bits(changed(base, 2, share), base, 2)
    assert len(payload) <= most * 200_000 + 30


def test_gaps_of_any_length() -> None:
    base = torch.zeros(3_000_000, dtype=torch.uint8)
    new = base.clone()
    new[[0, 1, 127, 255, 256, 17_000, 2_200_000, 2_999_999]] = 1
    payload = pack_bits(new, base, 1)
    assert len(payload) <= 80
    assert torch.equal(unpack_bits(memoryview(payload), base, 3_000_000, 1), new)


def test_frames_of_zeros_noise_and_weights() -> None:
    size = 100_000
    rare = torch.zeros(size, dtype=torch.uint8)
    rare[7:9] = 1
    lengths = [
        sum(map(len, pack_frame(values)))
        for values in (torch.zeros(size, dtype=torch.uint8), noise(size), noise(size) % 5, rare)
    ]
    assert lengths[0] == 4
    assert lengths[1] == size + 4
    assert lengths[2] < 0.35 * size
    assert lengths[3] < 800


@pytest.mark.parametrize("elements", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_tensors_of_several_chunks(elements: int) -> None:
    base = noise(elements * 2)
    new = base.clone()
    new[[0, -1]] ^= 3
    packed = pack_bits(new, base, 2)
    assert len(packed) < 100
    assert torch.equal(unpack_bits(memoryview(packed), base, elements * 2, 2), new)
    assert pack_bits(base, base, 2) == bytes(-(-elements // CHUNK))


NONE, ALL, BITMAP, GAPS = range(4)


def payload(kind: int, *rest: int | bytes) -> memoryview:
    parts = [each if isinstance(each, bytes) else each.to_bytes(4, "little") for each in rest]
    return memoryview(bytes((kind,)) + b"".join(parts))


def frame(data: bytes, *, deflated: bool = False) -> bytes:
    if deflated:
        deflate = zlib.compressobj(1, zlib.DEFLATED, -15)
        data = deflate.compress(data) + deflate.flush()
        return len(data).to_bytes(4, "little") + data
    return (len(data) | 1 << 31).to_bytes(4, "little") + data


SIZE = 100
ONES = frame(b"\x01" * SIZE)
REFUSED = {
    "nothing": memoryview(b""),
    "another kind": payload(4, ONES),
    "more after it": payload(NONE, b"\x00"),
    "a short frame": payload(ALL, frame(b"\x01" * (SIZE - 1))),
    "a long frame": payload(ALL, frame(b"\x01" * (SIZE + 1))),
    "no deflate": payload(ALL, 5, b"\xff" * 5),
    "a short deflated frame": payload(ALL, frame(bytes(SIZE - 1), deflated=True)),
    "a bomb": payload(ALL, frame(bytes(10_000_000), deflated=True)),
    "a bitmap of nothing": payload(BITMAP, 0, frame(bytes(13)), frame(b"")),
    "a bitmap of more than there are": payload(BITMAP, SIZE + 1, frame(b"\xff" * 13), ONES),
    "a bitmap of others": payload(BITMAP, 5, frame(b"\xff" + bytes(12)), frame(b"\x01" * 5)),
    "no gaps": payload(GAPS, 0, 0),
    "fewer gaps": payload(GAPS, 3, 2),
    "more gaps": payload(GAPS, 1, 9),
    "gaps of others": payload(GAPS, 2, 2, frame(b"\x81\x01"), frame(b"ab")),
    "a gap without end": payload(GAPS, 1, 2, frame(b"\x01\x81"), frame(b"a")),
    "a gap too far": payload(GAPS, 1, 1, frame(b"\x64"), frame(b"a")),
    "gaps too far": payload(GAPS, 2, 2, frame(b"\x40\x40"), frame(b"ab")),
    "a gap of two million": payload(GAPS, 1, 3, frame(b"\xff\xff\x7f"), frame(b"a")),
    "a gap in four bytes": payload(GAPS, 2, 5, frame(b"\x80\x80\x80\x00\x00"), frame(b"ab")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_payload_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="a malformed update"):
        unpack_bits(REFUSED[name], torch.zeros(SIZE, dtype=torch.uint8), SIZE, 1)
