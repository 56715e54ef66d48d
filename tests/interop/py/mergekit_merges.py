"""Runs mergekit for the differential tests, in its own environment; imports nothing of sbp2p.

The argument is a folder with `cases.json` and `inputs.safetensors`. A case has a name, a method,
parameters, whether the first input is the base, and the number of inputs, which are the tensors
"name/0", "name/1" and so on. Results go to `results.safetensors`, refusals (what mergekit raised)
to `refusals.json`. A case with a `config` is a merge of model folders instead, as the command
`mergekit-yaml` runs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.merge_methods.api import merge_tensors
from mergekit.options import MergeOptions
from safetensors.torch import load_file, save_file


def merge_folders(case: dict[str, Any]) -> None:
    """Merge model folders into a folder."""
    options = MergeOptions(quiet=True, copy_tokenizer=False, write_model_card=False)
    run_merge(MergeConfiguration.model_validate(case["config"]), case["output"], options)


def merge_one(case: dict[str, Any], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Merge tensors in memory."""
    return merge_tensors(
        [inputs[f"{case['name']}/{index}"] for index in range(case["count"])],
        case["method"],
        parameters=case["parameters"],
        base_index=0 if case["base"] else None,
    )


def main(folder: Path) -> None:
    """Run every case of a folder."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = load_file(folder / "inputs.safetensors")
    results: dict[str, torch.Tensor] = {}
    refusals: dict[str, str] = {}
    for case in json.loads((folder / "cases.json").read_text()):
        try:
            if "config" in case:
                merge_folders(case)
            else:
                results[case["name"]] = merge_one(case, inputs).contiguous()
        except Exception as error:
            refusals[case["name"]] = f"{type(error).__name__}: {error}"
    save_file(results, folder / "results.safetensors")
    (folder / "refusals.json").write_text(json.dumps(refusals))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
