"""The MiniLM sentence encoder as a plain PyTorch module, for the demo to load its weights into.

The names of its parameters are those of the Hugging Face checkpoint, so that `load_state_dict` is
strict: a missing, extra or misshapen tensor is an error. Shapes: B sentences, T tokens, H = 384.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class _Layer(nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        names = ("query", "key", "value")
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({name: nn.Linear(hidden, hidden) for name in names}),
                "output": _projection(hidden, hidden, epsilon),
            }
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(hidden, inner)})
        self.output = _projection(inner, hidden, epsilon)

    def _attend(self, x_bth: Tensor, mask_bt: Tensor) -> Tensor:
        batch, tokens, hidden = x_bth.shape

        def split(name: str) -> Tensor:
            projected: Tensor = self.attention["self"].get_submodule(name)(x_bth)
            return projected.view(batch, tokens, self.heads, -1).transpose(1, 2)

        mixed = nn.functional.scaled_dot_product_attention(
            split("query"), split("key"), split("value"), attn_mask=mask_bt[:, None, None, :]
        )
        return mixed.transpose(1, 2).reshape(batch, tokens, hidden)

    def forward(self, x_bth: Tensor, mask_bt: Tensor) -> Tensor:
        """Attend, then transform, each with its residual and norm."""
        x_bth = _add(self.attention["output"], self._attend(x_bth, mask_bt), x_bth)
        inner = nn.functional.gelu(self.intermediate["dense"](x_bth))
        return _add(self.output, inner, x_bth)


def _projection(width: int, hidden: int, epsilon: float) -> nn.ModuleDict:
    dense, norm = nn.Linear(width, hidden), nn.LayerNorm(hidden, eps=epsilon)
    return nn.ModuleDict({"dense": dense, "LayerNorm": norm})


def _add(block: nn.Module, update: Tensor, residual_bth: Tensor) -> Tensor:
    projected: Tensor = block.get_submodule("dense")(update)
    added: Tensor = block.get_submodule("LayerNorm")(residual_bth + projected)
    return added


class MiniLM(nn.Module):
    """Token ids in, one unit vector a sentence out."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, epsilon = config["hidden_size"], config["layer_norm_eps"]
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(config["vocab_size"], hidden),
                "position_embeddings": nn.Embedding(config["max_position_embeddings"], hidden),
                "token_type_embeddings": nn.Embedding(config["type_vocab_size"], hidden),
                "LayerNorm": nn.LayerNorm(hidden, eps=epsilon),
            }
        )
        positions = torch.arange(config["max_position_embeddings"])[None]
        self.embeddings.register_buffer("position_ids", positions)
        sizes = hidden, config["intermediate_size"], config["num_attention_heads"], epsilon
        layers = nn.ModuleList(_Layer(*sizes) for _ in range(config["num_hidden_layers"]))
        self.encoder = nn.ModuleDict({"layer": layers})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(hidden, hidden)})

    def forward(self, ids_bt: Tensor, mask_bt: Tensor) -> Tensor:
        """Return the mean of the token vectors, normalised: [B, H]."""
        tables = self.embeddings
        x_bth = tables["word_embeddings"](ids_bt)
        positions = tables.get_buffer("position_ids")[:, : ids_bt.shape[1]]
        x_bth = x_bth + tables["position_embeddings"](positions)
        x_bth = x_bth + tables["token_type_embeddings"](torch.zeros_like(ids_bt))
        x_bth = tables["LayerNorm"](x_bth)
        layers: Any = self.encoder["layer"]
        for layer in layers:
            x_bth = layer(x_bth, mask_bt)
        weights_bt1 = mask_bt[..., None].to(x_bth.dtype)
        mean_bh = (x_bth * weights_bt1).sum(1) / weights_bt1.sum(1)
        return nn.functional.normalize(mean_bh, dim=1)


def tokenize(sentences: Sequence[str], vocabulary: Path) -> tuple[Tensor, Tensor]:
    """Return token ids and mask, [B, T] each, by WordPiece over plain lower-case English."""
    lines = vocabulary.read_text(encoding="utf-8").splitlines()
    ids = {token: number for number, token in enumerate(lines)}
    rows = []
    for sentence in sentences:
        row = [ids["[CLS]"]]
        for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", sentence.lower()):
            row += _pieces(word, ids)
        rows.append([*row, ids["[SEP]"]])
    width = max(map(len, rows))
    padded = torch.tensor([row + [ids["[PAD]"]] * (width - len(row)) for row in rows])
    return padded, padded != ids["[PAD]"]


def _pieces(word: str, ids: dict[str, int]) -> list[int]:
    found: list[int] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in ids), None)
        if end is None:
            return [ids["[UNK]"]]
        found.append(ids[prefix + word[start:end]])
        start = end
    return found


def similarities(folder: Path, tensors: dict[str, Tensor], sentences: Sequence[str]) -> Tensor:
    """Load `tensors` into the module strictly and return the sentences' cosine matrix, [B, B]."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = MiniLM(config)
    model.load_state_dict(tensors, strict=True)
    model.eval()
    ids_bt, mask_bt = tokenize(sentences, folder / "vocab.txt")
    with torch.inference_mode():
        vectors_bh: Tensor = model(ids_bt, mask_bt)
    return vectors_bh @ vectors_bh.T
