"""Blocking calls, under the name by which the exchange knows them; see `sbp2p.calls`."""

from __future__ import annotations

from sbp2p.calls import Calls as Calls
from sbp2p.calls import InlineCalls as InlineCalls
from sbp2p.calls import ThreadCalls as ThreadCalls
