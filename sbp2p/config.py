"""Every knob of a node: frozen, keyword-only dataclasses with units in the names."""

from __future__ import annotations

from dataclasses import dataclass, field

from sbp2p.roles import Rules
from sbp2p_protocol.limits import MIB


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
class NodeConfig:
    """Everything together."""

    transport: TransportConfig = field(default_factory=TransportConfig)
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)
    swarm: SwarmConfig = field(default_factory=SwarmConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    roles: Rules = field(default_factory=Rules)
    """Who is sent to and asked at the beginning."""
    serve_perf: bool = True
    """Whether peers may measure the bandwidth to this node (`sbp2p bench`), within PERF_BUDGET."""
