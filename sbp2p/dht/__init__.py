"""The DHT: finding peers, providers and signed values with nobody in the middle.

| module | what |
|---|---|
| `dht` | the whole of it, for the rest of a node |
| `contacts` | the routing table, kept |
| `lookups` | lookups, driven |
| `announce` | what this node provides, announced and announced again |
| `providers`, `values` | finding who has something; signed values |
| `serving` | answers to peers |
| `records` | what is kept for others, and across restarts |
| `network`, `swarm_network` | what carries requests; streams of a swarm |
"""

from __future__ import annotations

from .announce import AnnounceReport as AnnounceReport
from .dht import ClosestServers as ClosestServers
from .dht import Dht as Dht
from .dht import DhtStatistics as DhtStatistics
from .dht import open_dht as open_dht
from .network import KadNetwork as KadNetwork
from .network import KadUser as KadUser
from .providers import Provider as Provider
from .providers import ProviderSearch as ProviderSearch
from .records import DhtRecords as DhtRecords
from .swarm_network import SwarmNetwork as SwarmNetwork
from .values import ValueFound as ValueFound
