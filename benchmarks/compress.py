"""Compressed updates: how small a step of training becomes, and how fast.

A small transformer is trained with AdamW, master weights in F32, and published in BF16, as most
training is. From the same point it goes on at several learning rates, and what a round of one or
twenty steps changed is encoded by every codec against what was published before. How fast is
measured on 64 MiB of weights with a Gaussian step, in CPU seconds of all threads, since nothing
here waits. Against zlib at its default level over the exclusive or of the same bytes, and over the
bytes themselves, in the same run.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from statistics import median
from time import process_time_ns

import torch

from benchmarks.harness import Claim, parser, report
from sbp2p.checkpoint.reader import RawTensor
from sbp2p.merge.compress.arrays import flat_bytes, raw
from sbp2p.merge.compress.codec import decode_update, get_codec

Model = Mapping[str, RawTensor]

CODECS = ("delta", "int8", "topk:0.01", "topk:0.001")
VOCABULARY, CONTEXT, WIDTH, LAYERS = 64, 64, 192, 4
RATES = (1e-3, 1e-4, 1e-5, 1e-6)
ROUNDS = (1, 20)


class Language(torch.nn.Module):
    """A transformer that predicts the next of 64 characters: 1.8 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.places = torch.nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits of the next character at every place."""
        mask = torch.nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.layers(self.tokens(text) + self.places[: text.shape[1]], mask=mask)
        found: torch.Tensor = self.head(hidden)
        return found


def batch(generator: torch.Generator) -> torch.Tensor:
    """Return text with a rule in it: each character hangs on the two before it."""
    rows = torch.randint(VOCABULARY, (8, CONTEXT + 1), generator=generator)
    for at in range(2, CONTEXT + 1):
        likely = (3 * rows[:, at - 1] + 5 * rows[:, at - 2] + 1) % VOCABULARY
        keep = torch.rand(8, generator=generator) < 0.9
        rows[:, at] = torch.where(keep, likely, rows[:, at])
    return rows


def train(model: Language, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    """Take steps of AdamW."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = batch(generator)
        logits = model(rows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def published(model: Language) -> Model:
    """Return the model as it goes out: BF16."""
    return {name: raw(name, value.bfloat16()) for name, value in model.state_dict().items()}


def nbytes(model: Model) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.data.nbytes for tensor in model.values())


def steps_of_training(warmup: int) -> dict[str, tuple[Model, Model]]:
    """Return what was published before and after a round, by learning rate and steps."""
    torch.manual_seed(1)
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, warmup, seed=1)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    memory = optimizer.state_dict()
    found = {}
    for rate in RATES:
        for steps in ROUNDS:
            model.load_state_dict(start)
            again = torch.optim.AdamW(model.parameters(), lr=rate)
            again.load_state_dict(memory)
            for group in again.param_groups:
                group["lr"] = rate
            before = published(model)
            train(model, again, steps, seed=2)
            found[f"lr_{rate:.0e}_steps_{steps}"] = before, published(model)
    return found


def changed(before: Model, after: Model) -> float:
    """Return which share of the elements has other bits."""
    pairs = [(flat_bytes(before[name].data), flat_bytes(after[name].data)) for name in before]
    count = sum(
        int((one.view(torch.int16) != other.view(torch.int16)).sum()) for one, other in pairs
    )
    return 2 * count / nbytes(before)


def xor(before: Model, after: Model) -> bytes:
    """Return the exclusive or of all bytes, tensor after tensor."""
    return b"".join(
        bytes((flat_bytes(before[name].data) ^ flat_bytes(after[name].data)).numpy())
        for name in before
    )


def sizes(rounds: Mapping[str, tuple[Model, Model]]) -> list[Claim]:
    """Return bytes of updates over bytes of models."""
    claims = []
    for name, (before, after) in rounds.items():
        whole = nbytes(after)
        claims.append(Claim(name=f"{name}.changed", value=changed(before, after), unit=""))
        for codec in CODECS:
            encoded = get_codec(codec).encode(after, before)
            share = encoded.nbytes / whole
            target = 0.03 if (codec, name) == ("delta", "lr_1e-06_steps_1") else None
            claims.append(
                Claim(name=f"{name}.{codec}", value=share, unit="", target=target, better="lower")
            )
        share = len(zlib.compress(xor(before, after))) / whole
        claims.append(Claim(name=f"{name}.zlib_of_xor", value=share, unit=""))
    return claims


def cpu_rate(work: Callable[[], object], size: int, rounds: int) -> float:
    """Return GB/s of the model, by the median CPU time of all threads."""
    taken = []
    for number in range(-1, rounds):
        start = process_time_ns()
        work()
        if number >= 0:
            taken.append(process_time_ns() - start)
    return size / median(taken)


def rates(elements: int, rounds: int) -> list[Claim]:
    """Return GB/s of a core at which models are encoded and decoded."""
    generator = torch.Generator().manual_seed(3)
    master = torch.randn(elements, generator=generator) * 0.02
    move = torch.randn(elements, generator=generator).clamp(-3, 3) * 1e-5
    before, after = ({"w": raw("w", each.bfloat16())} for each in (master, master + move))
    size = nbytes(after)
    claims = []
    found = {}
    for codec in ("bf16", *CODECS):
        encoder = get_codec(codec)
        encoded = encoder.encode(after, before)
        for what, work in {
            "encode": lambda encoder=encoder: encoder.encode(after, before),
            "decode": lambda encoded=encoded: decode_update(encoded.tensors, before),
        }.items():
            found[codec, what] = cpu_rate(work, size, rounds)
            claims.append(
                Claim(name=f"{codec}.{what}", value=found[codec, what], unit="GB/s of a core")
            )
    difference = bytes((flat_bytes(before["w"].data) ^ flat_bytes(after["w"].data)).numpy())
    part = difference[: size // 8]  # zlib takes long
    plain = cpu_rate(lambda: zlib.compress(part), len(part), 1)
    claims.append(Claim(name="zlib_of_xor.encode", value=plain, unit="GB/s of a core"))
    ratio = found["delta", "encode"] / plain
    claims.append(Claim(name="delta_ratio_vs_zlib", value=ratio, unit="", target=5.0))
    return claims


def main() -> int:
    """Train, encode, and print shares and rates."""
    options = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    rounds = options.rounds or (2 if options.quick else 5)
    claims = sizes(steps_of_training(warmup=20 if options.quick else 100))
    claims += rates((1 << 22) if options.quick else (1 << 25), rounds)
    return report(claims, {}, json_path=options.json, extra={"rounds_each": rounds})


if __name__ == "__main__":
    sys.exit(main())
