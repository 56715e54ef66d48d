"""Every knob of a node: frozen, keyword-only dataclasses with units in the names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sbp2p.roles import Rules
from sbp2p_protocol.choker import ChokingPolicy
from sbp2p_protocol.limits import KIB, MIB
from sbp2p_protocol.picking import Picking

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportConfig:
    """Dialling and listening."""

    dial_timeout_s: float = 10.0
    """One address, from SYN to connected. go-libp2p uses 15 s, curl 300 s."""
    upgrade_timeout_s: float = 10.0
    """multistream, Noise and yamux together. A half-open peer costs this long at most."""
    happy_eyeballs_delay_s: float = 0.25
    """Head start of one address over the next (RFC 8305 section 5)."""
    max_half_open: int = 64
    """Inbound connections that have not finished their upgrade; more are closed at accept."""
    max_parallel_dials: int = 16
    socket_buffer_bytes: int = 4 * MIB
    """SO_SNDBUF and SO_RCVBUF asked of the kernel; 0 leaves the kernel's own tuning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionConfig:
    """One encrypted, multiplexed connection."""

    receive_buffer_bytes: int = 1 * MIB
    """Bytes asked of the socket in one read."""
    send_high_water_bytes: int = 1 * MIB
    """Encrypted bytes queued for the socket above which senders wait."""
    keepalive_s: float = 30.0
    """Idle time before a yamux ping. go-yamux: 30 s."""
    ping_timeout_s: float = 10.0
    write_timeout_s: float = 30.0
    """No byte accepted by the socket for this long ends the connection. go-yamux: 10 s."""
    negotiate_timeout_s: float = 10.0
    """multistream-select on one stream."""
    prologue: bytes = field(default=b"", repr=False)
    """Of the Noise handshake: empty, or what only members of a private swarm know."""
    close_timeout_s: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmConfig:
    """The connection table."""

    max_connections: int = 256
    """A hostile connection can make a node hold 128 MiB, and all together have no other bound: with
    memory for fewer, lower this, or set an allow list (docs/threat-model.md, section 6)."""
    max_connections_per_peer: int = 4
    max_connections_per_ip: int = 32
    """Inbound, from one IPv4 address or one /64 of IPv6; loopback is exempt. An office behind one
    address fits; one attacker does not take all places."""
    identify_timeout_s: float = 5.0
    ban_score: int = 100
    """Penalty points at which a peer is banned; one bad block is worth all of them."""
    ban_duration_s: float = 3600.0
    refused_wait_s: float = 1.0
    """How long nobody from an IP address gets a handshake after one led to a peer that is kept out;
    doubles each time."""
    refused_wait_max_s: float = 32.0
    """A connection up to its refusal takes a few milliseconds of processor time: one in 32 s is
    nothing, and a dialler who shares the address with a banned peer is not kept out for long."""
    penalty_half_life_s: float = 600.0
    """After this time half of a peer's points are forgiven."""
    observers_min: int = 4
    """Groups of peers that must have seen this node at an address before it is announced.
    go-libp2p: 4."""
    observation_s: float = 1800.0
    """What a peer saw counts for this long after it has gone."""
    idle_connection_s: float = 120.0
    """A connection without a stream for this long is closed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """The index and the files behind it."""

    commit_batch_bytes: int = 64 * MIB
    """Verified bytes that are not safe from a power cut yet; then writers wait. With 8 MiB a fast
    download waited for the disk half of the time (decision 0004)."""
    commit_min_bytes: int = 8 * MIB
    """Fewer than this are not committed for their age."""
    commit_interval_s: float = 1.0
    """Age at which they are: a power cut costs what came since, a kill nothing."""
    quota_bytes: int | None = None
    """Most bytes that fetched files may take: a fetch makes room by removing fetched versions that
    are not pinned, or is refused. None: as much as the disk has."""
    max_open_files: int = 64
    busy_timeout_s: float = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeConfig:
    """Asking for blocks and serving them."""

    pipeline_bytes: int = 16 * MIB
    """Most bytes asked of one peer and not yet received."""
    progress_timeout_s: float = 10.0
    """A peer that owes blocks and makes no progress for this long loses its requests to others."""
    request_timeout_s: float = 30.0
    """Any single control request: hello, version, resolve."""
    patience_s: float = 10.0
    """How long a fetch goes on while nobody connected can give it anything it needs."""
    retry_s: float = 1.0
    """Wait before a peer that left is tried again; doubles each time, up to a minute."""
    max_sources: int = 64
    """Peers that one fetch asks at the same time."""
    write_queue_bytes: int = 8 * MIB
    """Received blocks that wait to be verified; above it nothing more is read from the peers."""
    write_batch_blocks: int = 4
    """Blocks verified and written in one thread call, which costs about 0.1 ms by itself."""
    write_workers: int = 1
    """Thread calls that verify and write at the same time. One keeps up with one event loop; two
    spin on the inode lock when they write to one file (an eighth of the CPU time, by perf)."""
    max_serving_streams: int = 64
    choking: ChokingPolicy = ChokingPolicy.TIT_FOR_TAT
    """Who is served when more want to be than `upload_slots_max` allows."""
    picking: Picking = Picking.RAREST
    """Which block is asked for first; a fetch `in_order` goes by the files all the same."""
    super_seed: bool = True
    """Whether a seed shows each peer other blocks, until everybody has something to share."""
    super_seed_blocks_min: int = 8
    """A version of fewer blocks is shown to everybody at once: there is not enough of it to show
    each another part, and holding back costs seconds where sending it takes none."""
    upload_slots_max: int = 32
    """Peers served at the same time. Fewer when each would wait for a block for longer than
    `upload_turn_s`, but never fewer than four."""
    upload_turn_s: float = 4.0
    parallel_uploads: int = 2
    """Blocks on their way out at the same time, at least; more while that leaves the link idle."""
    choke_round_s: float = 10.0
    optimistic_unchoke_s: float = 30.0
    snub_s: float = 60.0
    """A peer that owes a block and sends nothing for this long is served last."""
    serve_batch_blocks: int = 4
    """Blocks read in one thread call for a peer. Twice this many are held: one batch is read while
    the other is sent."""
    serve_memory_bytes: int = 64 * MIB
    """Blocks held for all peers together above which each peer has one read ahead, not a batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsConfig:
    """Most bytes a second that the exchange sends and reads; None for no limit, else above 0.

    Exact to 5 % over 10 s. Below 4 kB/s a peer may take this node for one that has stalled.
    """

    upload_bytes_s: float | None = None
    """To all peers together."""
    download_bytes_s: float | None = None
    peer_upload_bytes_s: float | None = None
    """To each peer."""
    peer_download_bytes_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscoveryConfig:
    """Finding peers and being found. The command line sets `lan` and `wanted_connections`."""

    enabled: bool = True
    """Whether any of this is done. Without it a node has the peers that it is told of."""
    bootstrap: tuple[str, ...] = ()
    """Addresses, each ending in /p2p/<peer-id>, of peers to be connected to from the start."""
    remember: bool = True
    """Whether peers that worked are kept in the home and are asked again by later fetches. On: they
    are asked for nothing that the user did not ask for."""
    lan: bool = False
    """Whether this node answers and asks by multicast on its networks. Off in the library: a
    program that uses it should not begin to talk to a whole office unasked."""
    lan_network: str = ""
    """Name of a private network, whose nodes find only each other by multicast."""
    lan_interfaces: tuple[str, ...] = ()
    """Interfaces to use, such as eth0; all that carry multicast if empty."""
    lan_query_s: float = 300.0
    """Between two multicast questions. rust-libp2p: 5 min."""
    lan_ttl_s: float = 360.0
    """How long an answer by multicast is good for. rust-libp2p: 6 min."""
    wanted_connections: int = 0
    """Connected peers below which known ones are dialled. 0 in the library: fetches dial by
    themselves, and a program is connected to those that it named."""
    bootstrap_connections: int = 3
    """Connected bootstrap peers that are enough."""
    parallel_dials: int = 4
    """Peers dialled at once; the fetches of a node dial besides."""
    backoff_s: float = 5.0
    """Wait before a peer that could not be reached is dialled again; doubles each time."""
    backoff_max_s: float = 600.0
    remember_s: float = 30 * 86400.0
    """A peer that worked last before this is forgotten."""
    keepalive_s: float = 45.0
    """Between two pings of a peer that is to stay connected; well under `idle_connection_s`, after
    which either side would close the connection."""
    short_lived_s: float = 30.0
    """A connection that ended before counts as a failure, or who turns this node away at once would
    be dialled at once again."""
    lan_wait_s: float = 2.5
    """How long a fetch that has found nothing waits for the first answers by multicast: two
    questions, a second apart, and their answers."""
    dht_wait_s: float = 10.0
    """How long a fetch waits for the DHT to have any server in its table."""
    search_again_s: float = 60.0
    """Between two searches for more peers while a fetch runs; the first ones follow sooner."""
    search_in_need_s: float = 4.0
    """The same at first, and while no peer has what is missing; under the exchange's `patience_s`,
    after which it gives up."""
    search_first_s: float = 1.5
    """After a first search that found somebody, the fetch has this long to find the version, or is
    not told of others any more; it goes on to ask those that it has."""
    remembered_sources_max: int = 8
    """Remembered peers that a fetch asks; most of them have nothing to do with it."""
    providers_max: int = 20
    """Providers that a fetch takes of one lookup in the DHT."""
    announce_wait_s: float = 5.0
    """After an announcement, how long changes are collected for the next one."""
    announce: Literal["versions", "blocks"] = "versions"
    """What of each version is put into the DHT: a constant number of records, or every block, so
    that each can be found by its own CID, whatever version it is looked for in."""
    autonat: bool = True
    """Whether peers are asked to dial this node back, and are dialled back."""
    autonat_answers_min: int = 4
    """Groups of observers that decide whether this node is reachable; libp2p: more than three."""
    autonat_settle_s: float = 5.0
    """A connection younger than this is not used to ask: a dial-back beside a fresh connection
    looks to the swarm as if both sides had dialled at once."""
    autonat_ask_s: float = 15.0
    autonat_recheck_s: float = 900.0
    autonat_again_s: float = 600.0
    autonat_valid_s: float = 7200.0
    """See `sbp2p_protocol.reachability`; enough for four rechecks of others in between."""
    dial_back_timeout_s: float = 10.0
    dial_back_private: bool = False
    """Whether peers at private addresses, or on this machine, are dialled back. Off: who comes in
    through a port forward is seen at an address of this node's own network, and could scan it."""
    dial_backs_per_minute: int = 3
    """Of one group of observers. go-libp2p: 3."""
    dial_backs_per_minute_total: int = 30
    """go-libp2p: 30."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtConfig:
    """The DHT."""

    enabled: bool = True
    """Whether this node takes part. It speaks only to peers that the user or other peers named, so
    without any of them nothing is sent."""
    network: str = "/sbp2p"
    """Which DHT: nodes of different networks never meet. `/ipfs` is the public one."""
    public: bool | None = None
    """Whether its members may be anybody anywhere, so that private addresses are neither dialled
    nor told. None: only in `/ipfs`. Another network of that name, in a lab, is not public."""
    mode: Literal["auto", "server", "client"] = "auto"
    """Whether this node answers others. auto: once it seems that others can reach it."""
    request_timeout_s: float = 10.0
    """One request, dialling included. go-libp2p: 10 s for the answer alone."""
    slow_s: float = 2.0
    """An answer that takes longer is waited for no more by its lookup, if others are to be had."""
    lookup_timeout_s: float = 60.0
    disjoint_paths: int = 3
    """Paths of a lookup for a record that share no peer; 1 for a plain lookup."""
    quorum: int = 16
    """Servers that have told a valid value before a lookup for the best one ends. IPNS: 16."""
    refresh_s: float = 600.0
    """Between two looks at each part of the routing table. go-libp2p: 10 min."""
    silent_s: float = 300.0
    """A contact of which nothing was seen for this long is asked whether it is there."""
    retry_s: float = 30.0
    """Between two tries to find the first server."""
    republish_s: float = 22 * 3600.0
    """Between two announcements of a key; servers keep it for 48 h."""
    upkeep_s: float = 60.0
    """Between two looks at what has expired, is due to be announced, or is to be written down."""
    mode_s: float = 5.0
    """Between two looks at whether this node can be a server."""
    parallel_checks: int = 4
    """Candidates for the routing table that are asked at a time."""
    parallel_sweeps: int = 4
    """Regions of the keyspace that are announced to at a time; a power of two."""
    parallel_sends: int = 16
    """Servers of one region that are told records at a time."""
    stream_idle_s: float = 15.0
    """A stream of ours without a request for this long is closed, and the connection with it if it
    was dialled for the DHT and nothing else uses it."""
    max_connections: int = 96
    """Connections dialled for the DHT; above it those that are idle longest are closed."""
    confirm_s: float = 2.0
    """How long a server may take to end a stream of records: then it has read them all."""
    serve_idle_s: float = 60.0
    """A stream of a peer without a request for this long is closed. go-libp2p: 1 min."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamingConfig:
    """Names: what this node's key publishes, and what others' names stand for."""

    publish: bool = True
    """Whether the versions that are signed with this node's key are put under its name, and the
    catalogs of others whose versions are here are served and announced."""
    lifetime_s: float = 48 * 3600.0
    """How long a record of ours is valid. kubo: 48 h."""
    republish_s: float = 4 * 3600.0
    """Between two publications of the same record. kubo: 4 h."""
    ttl_s: float = 300.0
    """How long readers may go without asking again; what a record of ours tells them."""
    look_s: float = 5.0
    """Between two looks at whether another process has published something from this home."""
    retry_s: float = 5.0
    """Wait before a publication that no server took is tried again; doubles, up to an hour."""
    lookup_timeout_s: float = 30.0
    """Getting a record, and again finding its catalog."""
    lookup_grace_s: float = 10.0
    """How much longer the pointer is waited for when connected peers have answered."""
    ask_timeout_s: float = 5.0
    """Peers that are connected tell what they know of a name within this, or are not waited for."""
    ask_peers_max: int = 32
    """Connected peers that are asked for a name at a time."""
    follow_ask_s: float = 3.0
    """Between two questions to connected peers whether there is a newer version."""
    follow_lookup_min_s: float = 60.0
    """Between two lookups of a name that is followed, whatever its record's TTL says."""
    follow_lookup_max_s: float = 900.0
    jitter: float = 0.2
    """Waits are longer or shorter by up to this part, so that followers do not ask in step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamespaceConfig:
    """Namespaces: nodes that train together (protocol/namespace.md)."""

    members_max: int = 256
    """Members that this node is linked with; more are turned away."""
    window_bytes: int = 2 * MIB
    """Bytes of messages from one member that wait for `receive`."""
    greet_timeout_s: float = 10.0
    """From a stream's opening to the peer's HELLO."""
    write_timeout_s: float = 30.0
    """A member that takes none of 64 KiB for so long has its stream reset."""
    retry_s: float = 0.5
    """Wait before a peer that should be a member is tried again; doubles each time."""
    retry_max_s: float = 30.0
    parallel_dials: int = 16
    gossip_s: float = 2.0
    """Between two looks at which members can be told of which."""
    search_s: float = 30.0
    """Between two searches for members in the DHT, which begin at a tenth of it."""
    provide_s: float = 3600.0
    """Between two announcements of this node as a member; servers keep one for 48 h."""
    announce_s: float = 60.0
    """Between two rounds whose versions are put under this node's name and into the DHT."""
    parallel_fetches: int = 8
    """Updates that are fetched at a time in one round."""
    absent_rounds: int = 2
    """A neighbour of which nothing came for so many rounds is waited for no more, until something
    does: one that only listens would make every round last as long as it may."""
    size_factor: float = 4.0
    """An update with more bytes than so many times this node's own model, and 1 MiB, is refused."""
    update_bytes_max: int = 64 * 1024 * MIB
    """The same for a node that has no model yet."""
    samples_max: int = 1_000_000
    """What a peer's claim of samples counts for at most."""
    records_kept: int = 16
    """Records of rounds, of the newest, that stay in the store."""
    bootstrap_timeout_s: float = 120.0
    bootstrap_wait_s: float = 1.0
    """After the first member with an update has come, how long others are waited for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WebConfig:
    """Web seeds: HTTP servers that have a version's files (docs/web-seeds.md)."""

    use: Literal["fallback", "first", "never"] = "fallback"
    """`fallback`: when no peer can be asked for what is missing; `first`: from the start."""
    after_s: float = 1.0
    """How long peers have had nothing to give before a fallback is asked."""
    parallel_requests: int = 4
    """At once, to all web seeds of a fetch together."""
    request_bytes: int = 8 * MIB
    """Blocks that are asked for in one request; and what is asked twice when one fails."""
    gap_bytes: int = 64 * KIB
    """Bytes between two wanted blocks that are rather read and dropped than asked around."""
    connect_timeout_s: float = 10.0
    """Looking up the name, TCP and TLS, for each address."""
    idle_timeout_s: float = 20.0
    """For the head of an answer, and between two pieces of its body."""
    min_rate_bytes_s: int = 16 * KIB
    """An answer that is slower than this on the whole is given up."""
    retry_s: float = 1.0
    """Wait after a failure; doubles with each further one."""
    retry_max_s: float = 30.0
    max_failures: int = 5
    """In a row, after which a web seed is not asked any more."""
    max_redirects: int = 5
    ca_file: Path | None = None
    """Certificates to trust instead of the system's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeConfig:
    """Everything together."""

    transport: TransportConfig = field(default_factory=TransportConfig)
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)
    swarm: SwarmConfig = field(default_factory=SwarmConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    web: WebConfig = field(default_factory=WebConfig)
    naming: NamingConfig = field(default_factory=NamingConfig)
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    dht: DhtConfig = field(default_factory=DhtConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    namespace: NamespaceConfig = field(default_factory=NamespaceConfig)
    roles: Rules = field(default_factory=Rules)
    """Who is sent to and asked at the beginning."""
    serve_perf: bool = True
    """Whether peers may measure the bandwidth to this node (`sbp2p bench`), within PERF_BUDGET."""
