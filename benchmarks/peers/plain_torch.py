"""What one writes without a library: load every model, stack each tensor, reduce, save."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path


def main() -> int:
    """Merge, and print how long it took without the start of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=["mean", "median"], required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("inputs", type=Path, nargs="+")
    args = parser.parse_args()

    import torch
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(args.threads)
    started = time.perf_counter()
    models = [load_file(path / "model.safetensors") for path in args.inputs]
    merged = {}
    for name, first in models[0].items():
        stack = torch.stack([model[name].float() for model in models])
        value = stack.mean(0) if args.method == "mean" else stack.median(0).values
        merged[name] = value.to(first.dtype)
    args.output.mkdir()
    save_file(merged, args.output / "model.safetensors", {"format": "pt"})
    print(json.dumps({"seconds": time.perf_counter() - started}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
