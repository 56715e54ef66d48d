"""Every snippet of docs/training.md and docs/plugins.md runs, with a second node that trains."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import sbp2p
from sbp2p.plugins import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parents[2] / "docs"
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


def snippets(name: str) -> list[tuple[int, str]]:
    """Return the line number and the text of each Python block of a document."""
    text = (DOCS / name).read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in found]


def trainer_of(snippet: str) -> str:
    """Return which trainer's package a snippet needs."""
    found = re.search(r"^(?:import|from) (lightning|transformers)\b", snippet, re.MULTILINE)
    return found.group(1) if found else ""


def run(name: str, trainer: str, names: dict[str, Any]) -> int:
    """Run the snippets of a document that need this trainer; return how many."""
    chosen = [each for each in snippets(name) if trainer_of(each[1]) == trainer]
    for line, snippet in chosen:
        # as if its lines were the document's, so that tracebacks point there
        exec(compile("\n" * line + snippet, str(DOCS / name), "exec"), names)  # noqa: S102
    return len(chosen)


@contextmanager
def partner(home: Path, namespace: str, model: torch.nn.Module) -> Iterator[list[str]]:
    """A second node that takes part in every round while somebody is there."""
    ended = threading.Event()
    with sbp2p.background(namespace, home=home, listen=LOOPBACK) as swarm:
        addresses = list(swarm.addresses)
        swarm.start_from(model)

        def take_part() -> None:
            while not ended.is_set():
                if swarm.peers:
                    swarm.step(model, wait_s=0.1)
                else:
                    swarm.collect(model, wait_s=0)
                    ended.wait(0.02)

        thread = threading.Thread(target=take_part)
        thread.start()
        try:
            yield addresses
        finally:
            ended.set()
            thread.join()


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the text says is the reader's, and a place to run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SBP2P_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(model: torch.nn.Module, batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    with partner(tmp_path / "partner", "digits", torch.nn.Linear(4, 1)) as peers:
        yield {
            "sbp2p": sbp2p,
            "model": model,
            "train": train,
            "batches": list(torch.randn(4, 8, 4)),
            "peers": peers,
        }


@pytest.mark.e2e
def test_the_guide_to_training(names: dict[str, Any]) -> None:
    assert run("training.md", "", names) == 9


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated")
def test_the_guide_to_lightning(names: dict[str, Any]) -> None:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1, 4))
            self.bias = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return torch.nn.functional.linear(batch, self.weight, self.bias).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    names["lightning_module"] = Module()
    names["loader"] = torch.utils.data.DataLoader(names["batches"], batch_size=None)
    names["quiet"] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    assert run("training.md", "lightning", names) == 1


@pytest.mark.e2e
def test_the_guide_to_the_hugging_face_trainer(names: dict[str, Any], tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    config = GPT2Config(
        vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    names["gpt"] = GPT2LMHeadModel(config)
    names["rows"] = [{"input_ids": row, "labels": row} for row in torch.randint(0, 8, (8, 4))]
    names["arguments"] = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        num_train_epochs=1,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    with partner(tmp_path / "other", "tiny-gpt", GPT2LMHeadModel(config)) as names["peers"]:
        assert run("training.md", "transformers", names) == 1


def test_the_page_about_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    assert run("plugins.md", "", {}) == 5
