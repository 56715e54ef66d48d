"""Settings of every test run."""

from __future__ import annotations

from hypothesis import settings

# A time limit for one example measures the machine, not the code: CI machines are shared.
settings.register_profile("sbp2p", deadline=None)
settings.load_profile("sbp2p")
