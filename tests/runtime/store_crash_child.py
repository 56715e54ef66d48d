"""Run by test_store_crash.py in a process of its own, and killed: fetches until it is done."""

from __future__ import annotations

import sys
from pathlib import Path

from sbp2p.store import Store
from tests.runtime.store_samples import SMALL_BATCH, crash_sample


def main(home: Path, destination: Path) -> None:
    """Resume, and say what is had before and after every block."""
    version = crash_sample()
    with Store.open(home, SMALL_BATCH) as store, version.open(store, destination) as download:
        print("had", *download.have, flush=True)  # noqa: T201
        for index in list(download.missing):
            download.write_block(index, [version.block(index)])
            print("wrote", index, flush=True)  # noqa: T201
        download.finish()
        print("finished", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
