"""Reads files from their beginning to their end in several threads: what the disk can do."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

PIECE = 8 * 1024 * 1024


def read(path: str) -> int:
    """Read a file into one buffer, and return its size."""
    buffer = memoryview(bytearray(PIECE))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        done = 0
        while count := os.preadv(descriptor, [buffer], done):
            done += count
        return done
    finally:
        os.close(descriptor)


def main() -> int:
    """Read, and print how long it took without the start of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    started = time.perf_counter()
    with ThreadPoolExecutor(args.threads) as pool:
        size = sum(pool.map(read, args.files))
    print(json.dumps({"seconds": time.perf_counter() - started, "bytes": size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
