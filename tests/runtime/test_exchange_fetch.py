from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.runtime.exchange_lab import open_lab, small_version

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@pytest.fixture(autouse=True)
def _threads_take_time(autojump_clock: MockClock) -> None:
    # while a worker thread runs, the event loop is idle but the clock must not jump
    autojump_clock.autojump_threshold = 0.02


async def test_one_seed(tmp_path: Path) -> None:
    version = small_version()
    async with open_lab(tmp_path) as lab:
        seed, leech = await lab.node(), await lab.node()
        await seed.publish(version)
        result = await leech.get(version, seed)
        version.assert_at(leech.out)
        assert result.bytes_wanted == version.table.total_bytes
        assert result.bytes_useless == 0
        record = leech.store.version(version.manifest.cid)
        assert record is not None
        assert record.complete
