"""The Hugging Face Trainer, the real one, trains with peers; without any network but loopback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import sbp2p
from tests.runtime.training_pair import LOOPBACK, WAIT_S

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def parts() -> Any:
    """What is imported late, because it takes long, and must find the hub out of reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TRANSFORMERS_OFFLINE", "1")
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

        from sbp2p.integrations.transformers import Sbp2pTrainerCallback

    def make(seed: int) -> Any:
        torch.manual_seed(seed)
        config = GPT2Config(
            vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0,
            eos_token_id=0,
        )  # fmt: skip
        return GPT2LMHeadModel(config)

    def train(model: Any, seed: int, folder: Path, callback: Any, words: int = 32) -> Any:
        rows = torch.randint(0, words, (18, 8), generator=torch.Generator().manual_seed(seed))
        arguments = TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=[{"input_ids": row, "labels": row} for row in rows],
            callbacks=[callback],
        )
        return trainer.train()

    return SimpleNamespace(make=make, train=train, callback=Sbp2pTrainerCallback)


def test_two_trainers_end_with_the_same_model(tmp_path: Path, parts: Any) -> None:
    ours, theirs = parts.make(1), parts.make(2)
    with (
        ThreadPoolExecutor(1) as pool,
        sbp2p.background("tiny", home=tmp_path / "a", listen=LOOPBACK) as alice,
    ):
        bob = sbp2p.background("tiny", home=tmp_path / "b", peers=alice.addresses)
        first, second = (
            parts.callback(swarm, every_steps=4, peers_min=1) for swarm in (alice, bob)
        )
        other = pool.submit(parts.train, theirs, 2, tmp_path / "bob", second)
        done = parts.train(ours, 1, tmp_path / "alice", first)
        other.result(WAIT_S)
        assert alice.is_open, "it was open before"
        assert not bob.is_open, "it was opened by the callback"
        # 5 batches an epoch: 4 times 4, then 2 + 3 times 4, then what is left at the end
        samples = [[each.samples for each in result.merged] for result in alice.history]
        assert samples == [[16, 16], [14, 14], [6, 6]]
    assert done.global_step == 10
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert ours["lm_head.weight"].data_ptr() == ours["transformer.wte.weight"].data_ptr()


def test_epochs_are_counted_and_a_training_alone_is_not_held_up(tmp_path: Path, parts: Any) -> None:
    swarm = sbp2p.background("tiny", home=tmp_path / "a")
    callback = parts.callback(swarm, every_epochs=1)
    parts.train(parts.make(1), 1, tmp_path / "out", callback)
    assert not swarm.is_open
    assert len(swarm.history) == 2
    callback.close()


def test_a_node_that_was_opened_for_a_training_that_failed_can_be_closed(
    tmp_path: Path, parts: Any
) -> None:
    swarm = sbp2p.background("tiny", home=tmp_path / "a")
    callback = parts.callback(swarm, every_steps=1)
    with pytest.raises(IndexError):  # words that the model does not have
        parts.train(parts.make(1), 1, tmp_path / "out", callback, words=999)
    assert swarm.is_open
    callback.close()
    assert not swarm.is_open
    lonely = sbp2p.background("tiny", home=tmp_path / "b")
    callback = parts.callback(lonely, every_steps=1, peers_min=1, timeout_s=0.05)
    with pytest.raises(sbp2p.PeerUnreachableError):
        parts.train(parts.make(1), 1, tmp_path / "out", callback)
    assert not lonely.is_open
