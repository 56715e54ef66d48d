"""The exchange: blocks of versions, asked of peers and served to them.

protocol/exchange.md is the wire format; decisions 0005 and 0013 tell why it is so.

    service.py    the API                       fetch.py      the steps of one fetch
    finding.py    from a link to a version      peers.py      who hears what peers tell
    sources.py    peers, kept and retried       session.py    one peer that is asked
    questions.py  who knows this version?       nodes.py      tree nodes and index pages
    scheduler.py  who is asked for what         writer.py     verify, write, commit
    serve.py      one peer that asks            library.py    what can be served, who follows
    following.py  what a follower is told       reading.py    blocks read, ready to be sent
    uploads.py    whose block goes out next     gossip.py, records.py: peers tell of peers
    permits.py    what roles let go out         ledger.py     what went to and came from whom
    progress.py   values                        signal.py, threads.py, unwrap.py: trio idioms
"""

from __future__ import annotations

from .progress import Choice, FetchProgress, FetchResult, FoundVersion, Phase
from .serve import ServingStatistics
from .service import Exchange, ExchangeStatistics
from .session import SourceStatistics
from .source import Source

__all__ = [
    "Choice",
    "Exchange",
    "ExchangeStatistics",
    "FetchProgress",
    "FetchResult",
    "FoundVersion",
    "Phase",
    "ServingStatistics",
    "Source",
    "SourceStatistics",
]
