"""mergekit 0.1.5 merges model folders, as the program of that name does; run in its environment.

Lazy loading and the smallest memory that its options offer for a CPU: it maps the files, so its
peak of resident memory counts pages of the cache, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time


def main() -> int:
    """Merge, and print how long it took without the start of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=["mean", "ties"], required=True)
    parser.add_argument("--density", type=float, default=0.2)
    parser.add_argument("--base", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("inputs", nargs="+")
    args = parser.parse_args()

    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    models = [{"model": path, "parameters": {"weight": 1.0}} for path in args.inputs]
    config = {"merge_method": "linear", "models": models}
    if args.method == "ties":
        for model in models:
            model["parameters"]["density"] = args.density
        config = {"merge_method": "ties", "base_model": args.base, "models": models}
        config["parameters"] = {"normalize": True}
    options = MergeOptions(
        copy_tokenizer=False,
        write_model_card=False,
        lazy_unpickle=True,
        quiet=True,
        num_threads=args.threads,
    )
    started = time.perf_counter()
    run_merge(MergeConfiguration.model_validate(config), args.output, options)
    print(json.dumps({"seconds": time.perf_counter() - started}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
