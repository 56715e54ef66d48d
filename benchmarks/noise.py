"""Noise transport: the cipher suites, and the ways to move bytes through them.

Backs docs/decisions/0002-noise-suites.md. Every variant handles the same 1 MiB, one after the other
in each round, and is timed in CPU seconds of this thread, since nothing here waits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from statistics import median
from time import thread_time_ns

from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from benchmarks.harness import Claim, parser, report
from sbp2p_protocol.noise_suite import CipherState, NoiseSuite
from sbp2p_protocol.noise_transport import (
    OVERHEAD,
    PLAINTEXT_MAX,
    TAG_SIZE,
    NoiseReceiver,
    NoiseSender,
    sealed_size_max,
)

KEY = bytes(32)
MESSAGES = 16
PLAIN = os.urandom(MESSAGES * PLAINTEXT_MAX)
HEADER = bytes(12)
NONCE = bytes(12)

Variants = Mapping[str, Callable[[], object]]


def measure(variants: Variants, rounds: int) -> dict[str, float]:
    """Return GB/s of plaintext of every variant: medians over rounds that alternate."""
    times: dict[str, list[int]] = {name: [] for name in variants}
    for number in range(-10, rounds):
        for name, variant in variants.items():
            start = thread_time_ns()
            variant()
            if number >= 0:
                times[name].append(thread_time_ns() - start)
    return {name: len(PLAIN) / median(taken) for name, taken in times.items()}


def pieces(size: int = PLAINTEXT_MAX) -> list[memoryview]:
    """Cut the plaintext, without copying."""
    view = memoryview(PLAIN)
    return [view[start : start + size] for start in range(0, len(PLAIN), size)]


def ciphers() -> Variants:
    """Encrypt 65519-byte messages into memory that is there already."""
    out = memoryview(bytearray(PLAINTEXT_MAX + TAG_SIZE))
    parts = pieces()

    def seal(aead: AESGCM | ChaCha20Poly1305) -> Callable[[], object]:
        return lambda: [aead.encrypt_into(NONCE, part, None, out) for part in parts]

    return {
        "aes_256_gcm": seal(AESGCM(KEY)),
        "aes_128_gcm": seal(AESGCM(KEY[:16])),
        "chacha20_poly1305": seal(ChaCha20Poly1305(KEY)),
    }


def receiving() -> Variants:
    """Decrypt 16 messages and hash the plaintext, as whoever receives a block does."""
    cipher = CipherState(NoiseSuite.AESGCM, KEY)
    aead, pack = cipher.aead, cipher.pack_nonce
    wire = [aead.encrypt(pack(nonce), part, None) for nonce, part in enumerate(pieces())]
    pool = memoryview(bytearray(len(PLAIN)))
    framed = b"".join(len(message).to_bytes(2, "big") + message for message in wire)

    def hashed(*chunks: bytes | bytearray | memoryview) -> None:
        state = blake3()
        for chunk in chunks:
            state.update(chunk)
        state.digest()

    def into(batch: memoryview) -> memoryview:
        for nonce, message in enumerate(wire):
            start = nonce * PLAINTEXT_MAX
            aead.decrypt_into(pack(nonce), message, None, batch[start : start + PLAINTEXT_MAX])
        return batch

    def fresh(nonce: int, message: bytes) -> bytearray:
        chunk = bytearray(PLAINTEXT_MAX)
        aead.decrypt_into(pack(nonce), message, None, chunk)
        return chunk

    machine = NoiseReceiver(cipher, buffer_bytes=len(framed))

    def receiver() -> None:
        cipher.messages = 0
        machine.receive_buffer()[: len(framed)] = framed
        batch = machine.bytes_received(len(framed))
        hashed(batch or b"")

    return {
        "bytes_a_message": lambda: hashed(
            *[aead.decrypt(pack(nonce), message, None) for nonce, message in enumerate(wire)]
        ),
        "bytearray_a_message": lambda: hashed(
            *[fresh(n, message) for n, message in enumerate(wire)]
        ),
        "one_batch": lambda: hashed(into(memoryview(bytearray(len(PLAIN))))),
        "one_pooled_batch": lambda: hashed(into(pool)),
        "noise_receiver_and_copy_in": receiver,
    }


def sending() -> Variants:
    """Encrypt 16 messages with their length prefixes."""
    cipher = CipherState(NoiseSuite.AESGCM, KEY)
    aead = cipher.aead
    parts = pieces()
    size = PLAINTEXT_MAX + OVERHEAD
    pool = memoryview(bytearray(sealed_size_max([PLAIN])))

    def into(out: memoryview) -> None:
        for number, part in enumerate(parts):
            start = number * size
            out[start : start + 2] = b"\xff\xff"
            aead.encrypt_into(NONCE, part, None, out[start + 2 : start + size])

    sender = NoiseSender(cipher)
    return {
        "fresh_buffer": lambda: into(memoryview(bytearray(MESSAGES * size))),
        "pooled_buffer": lambda: into(pool),
        "list_of_bytes": lambda: [(b"\xff\xff", aead.encrypt(NONCE, p, None)) for p in parts],
        "noise_sender_pooled": lambda: sender.encrypt_into([PLAIN], pool),
    }


def headers() -> Variants:
    """A 12-byte header before every frame: a message of its own, or joined to it by copying."""
    aead = AESGCM(KEY)
    frames = pieces(PLAINTEXT_MAX - len(HEADER))
    out = memoryview(bytearray(len(PLAIN) + 64 * OVERHEAD))
    scratch = memoryview(bytearray(PLAINTEXT_MAX))

    def apart() -> None:
        start = 0
        for frame in frames:
            aead.encrypt_into(NONCE, HEADER, None, out[: len(HEADER) + TAG_SIZE])
            end = start + len(frame) + TAG_SIZE
            aead.encrypt_into(NONCE, frame, None, out[start:end])
            start = end

    def joined() -> None:
        start = 0
        for frame in frames:
            size = len(HEADER) + len(frame)
            scratch[: len(HEADER)] = HEADER
            scratch[len(HEADER) : size] = frame
            end = start + size + TAG_SIZE
            aead.encrypt_into(NONCE, scratch[:size], None, out[start:end])
            start = end

    return {"header_apart": apart, "header_joined": joined}


def main() -> int:
    """Run every comparison and print GB/s."""
    options = parser(__doc__ or "").parse_args()
    rounds = options.rounds or (100 if options.quick else 500)
    claims: list[Claim] = []
    for group in (ciphers, receiving, sending, headers):
        rates = measure(group(), rounds)
        claims += [
            Claim(name=f"{group.__name__}.{n}", value=r, unit="GB/s") for n, r in rates.items()
        ]
        if group is ciphers:
            ratio = rates["aes_256_gcm"] / rates["chacha20_poly1305"]
            claims.append(Claim(name="ratio_vs_chacha", value=ratio, unit="", target=1.0))
    return report(claims, {}, json_path=options.json, extra={"rounds_each": rounds})


if __name__ == "__main__":
    sys.exit(main())
