"""Every bound on what a peer may make this side hold, compute or wait for.

One module, so that one reading tells what a hostile peer can cost. Each constant states its unit
and why it has this value; where other implementations chose one, theirs stands beside it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- blocks -------------------------------------------------------------------------------------

BLOCK_MAX: Final = 1 * MIB
"""Bytes in a leaf block. Bitswap and gateways refuse 2 MiB; libtorrent's usual piece is 1-4 MiB."""

NODE_BLOCK_MAX: Final = 1 * MIB
"""Bytes in a dag-pb or dag-cbor block; the same bound lets any block travel in one frame."""

# -- data model ---------------------------------------------------------------------------------

CID_DIGEST_MAX: Final = 128
"""Bytes of digest in a CID; boxo's bound for any hash function, identity included."""

CID_BYTES_MAX: Final = 28 + CID_DIGEST_MAX
"""Bytes in a binary CID: version, codec, hash code and length are at most 28 bytes of varints."""

CID_TEXT_MAX: Final = 1 + 8 * CID_BYTES_MAX
"""Characters in a CID's text: base 2, the longest of the multibases."""

CBOR_DEPTH_MAX: Final = 64
"""Levels of nesting in dag-cbor; our schemas need 4. The reader recurses: this bounds its stack."""

# -- negotiation --------------------------------------------------------------------------------

MULTISTREAM_MESSAGE_MAX: Final = 1 * KIB
"""Bytes in a multistream-select message, newline included. go and js: 1024; rust: 16383."""

MULTISTREAM_PROPOSALS_MAX: Final = 16
"""Protocols a peer may propose in one negotiation before it is closed; honest ones need 1 to 3."""

# -- Noise --------------------------------------------------------------------------------------

NOISE_HANDSHAKE_MESSAGE_MAX: Final = 8 * KIB
"""Bytes in a handshake message. An RSA-8192 identity needs about 2.3 KiB; Ed25519 needs 216."""

NOISE_MUXERS_MAX: Final = 16
"""Muxers read from the early negotiation list; the rest is ignored."""

# -- identify, peer records, ping, perf ---------------------------------------------------------

IDENTIFY_MESSAGE_MAX: Final = 8 * KIB
"""Bytes in one identify message that is accepted. go sends up to 8 KiB; rust accepts 4 KiB."""

IDENTIFY_SEND_MAX: Final = 4 * KIB
"""Bytes in one identify message that is sent: what rust-libp2p still accepts."""

IDENTIFY_MESSAGES_MAX: Final = 10
"""Messages merged from one identify stream. go splits in two; go and js read up to 10."""

IDENTIFY_ADDRESSES_MAX: Final = 64
"""Listen addresses kept of one peer; the rest of the list is ignored."""

IDENTIFY_PROTOCOLS_MAX: Final = 1000
"""Protocol ids kept of one peer; the rest of the list is ignored."""

IDENTIFY_TEXT_MAX: Final = 256
"""Bytes in a protocol id, an agent version or a protocol version; a longer one is dropped."""

ADDRESS_MAX: Final = 1 * KIB
"""Bytes in a binary or text multiaddr. A relayed address with two RSA peer ids needs about 100."""

PEER_RECORD_ADDRESSES_MAX: Final = 64
"""Addresses kept of one signed peer record; the rest is ignored."""

PERF_DOWNLOAD_MAX: Final = 16 * 1024 * MIB
"""Bytes a peer may ask back in one perf run: 14 s at 10 Gbit/s, long enough to settle."""

PERF_UPLOAD_MAX: Final = PERF_DOWNLOAD_MAX
"""Bytes a peer may upload in one perf run, for the same reason."""

PERF_RUNS_MAX: Final = 4
"""Perf runs served at once, one to a peer: more would measure only each other."""

PERF_RUN_S: Final = 600.0
"""Seconds after which a run is ended: a place is not held for ever by a peer that does not read.
256 MiB each way, what `sbp2p bench` moves, fit from 0.9 MB/s."""

PERF_BUDGET: Final = 64 * 1024 * MIB
"""Bytes that all runs of all peers may move in PERF_BUDGET_S, both ways together: 128 runs of
`sbp2p bench`. Peer ids cost nothing, so runs alone would bound nothing."""

PERF_BUDGET_S: Final = 3600.0
"""Seconds in which the budget for perf runs fills up again: 19 MB/s in the long run."""

# -- peers --------------------------------------------------------------------------------------

SCORED_PEERS_MAX: Final = 4096
"""Peers whose penalty points are remembered, about 200 bytes each. Ids are free to make, so the
least important entries give way."""

REFUSED_ORIGINS_MAX: Final = 4096
"""Addresses that wait because a peer from there was refused, about 200 bytes each; who was refused
longest ago gives way. A whole IPv4 /20 fits."""

OBSERVER_GROUPS_MAX: Final = 1024
"""Groups of peers whose reports of this node's address are kept, about 500 bytes each; more than
max_connections, so that who left lately still counts."""

OBSERVED_PER_GROUP_MAX: Final = 4
"""Addresses of this node that one group of observers speaks for, and that are confirmed at most: an
honest observer sees one for each port that is listened on."""

AUTONAT_MESSAGE_MAX: Final = 4 * KIB
"""Bytes in one AutoNAT message; js-libp2p: 8 KiB. Sixteen addresses take under 1 KiB."""

AUTONAT_ADDRESSES_MAX: Final = 16
"""Addresses in one AutoNAT request that are looked at; the rest is ignored. go: 16."""

AUTONAT_TEXT_MAX: Final = 256
"""Bytes of explanation in an AutoNAT answer."""

AUTONAT_DIAL_DATA_MAX: Final = 100_000
"""Bytes that an AutoNAT server may want before it dials: what the specification allows."""

AUTONAT_DIAL_DATA_CHUNK: Final = 4000
"""Bytes of it in one message, which may hold 4096."""

AUTONAT_TWO_MESSAGE_MAX: Final = 8 * KIB
"""Bytes in one message of AutoNAT's second version; the specification's bound."""

DIAL_BACK_ADDRESSES_MAX: Final = 4
"""Addresses that one AutoNAT request makes this node dial."""

DIAL_BACKS_AT_ONCE_MAX: Final = 8
"""Dial-backs for all peers together; a request beyond them is refused."""

REACHABILITY_ANSWERS_MAX: Final = 64
"""Groups of observers whose word on reachability is kept, the newest; four decide."""

MDNS_PACKET_MAX: Final = 1400
"""Bytes in a multicast packet that is sent: with its headers, under the MTU of every Ethernet."""

MDNS_RECEIVED_MAX: Final = 9000
"""Bytes in a multicast packet that is read (RFC 6762 section 17)."""

MDNS_RECORDS_MAX: Final = 128
"""Records, and questions, of one multicast packet that are looked at."""

DNS_NAME_MAX: Final = 255
"""Bytes in a DNS name, its final empty label included (RFC 1035 section 2.3.4)."""

MDNS_STRING_MAX: Final = 255
"""Bytes in one string of a TXT record; the length has one byte."""

MDNS_PEERS_MAX: Final = 16
"""Peers that one multicast packet may name; an honest one names its sender."""

MDNS_STRINGS_MAX: Final = 32
"""Strings of one multicast packet that are read as addresses, up to 0.2 ms each."""

MDNS_PACKETS_PER_S: Final = 30
"""Multicast packets of one link about libp2p that are read in a second; more are dropped unread.
With 32 strings each they cost a fifth of a core; an honest one has a few strings. A hundred nodes
that all answer at once are heard within a few questions."""

CANDIDATES_MAX: Final = 1024
"""Peers that were heard of and could be dialled, about 2 KB each with all their addresses."""

CANDIDATE_ADDRESSES_MAX: Final = 16
"""Addresses kept of one candidate, the newest; a dial tries them all. LINK_PEERS_MAX fit."""

REMEMBERED_PEERS_MAX: Final = 256
"""Peers kept on disk from one run to the next; those that worked least and longest ago give way."""

# -- yamux --------------------------------------------------------------------------------------

YAMUX_BASE_WINDOW: Final = 256 * KIB
"""Credit that every stream starts with in each direction; fixed by the protocol."""

YAMUX_MAX_WINDOW: Final = 16 * MIB
"""A stream's receive window at most: 100 ms at 1 Gbit/s needs 12.5 MiB. go-yamux: 16 MiB."""

YAMUX_SESSION_WINDOW: Final = 64 * MIB
"""Sum of the receive windows of a session: unread bytes that one peer can make us hold. Growth
beyond the base window is refused when it is spent. rust-yamux: 1 GiB."""

YAMUX_MAX_INBOUND_STREAMS: Final = 256
"""Streams a peer may have open at once; more are reset. Their base windows add up to the session
window. go-libp2p: 256 inbound a peer, js: 1000, rust: 512 in total."""

YAMUX_MAX_OUTBOUND_STREAMS: Final = 1024
"""Streams of our own at once: a bug's bound, not a peer's. js-libp2p: 1000."""

YAMUX_ACK_BACKLOG: Final = 256
"""Streams we have opened that the peer has not acknowledged (libp2p's yamux spec)."""

YAMUX_SKIPPED_IDS: Final = 256
"""Peer stream ids below the highest seen that may still open. go and rust peers number a stream
before they send its first frame, so frames of parallel opens arrive out of order."""

YAMUX_MAX_DATA_FRAME: Final = YAMUX_MAX_WINDOW
"""Payload of one Data frame: no stream ever has more credit. rust-yamux: 1 MiB."""

YAMUX_PENDING_PONGS: Final = 32
"""Answers to pings that wait to be written; pings beyond that go unanswered. go-yamux: 32."""

YAMUX_CONTROL_QUEUE: Final = 64 * KIB
"""Bytes of answers (acknowledgements, resets, pongs) that wait to be written: 5461 frames. A peer
that makes us answer more than it reads is cut off."""

NAME_BYTES_MAX: Final = 255
"""UTF-8 bytes in a file name; ext4, XFS, APFS and NTFS all store at least this many."""

PATH_BYTES_MAX: Final = 4096
"""UTF-8 bytes in a path inside a version; Linux PATH_MAX."""

PATH_DEPTH_MAX: Final = 32
"""Names in a path; also bounds the walk through nested directories. Checkpoints use 2 or 3."""

VERSION_FILES_MAX: Final = 65_536
"""Files in a version: what one walk may list. The largest public checkpoints have under 2,000."""

VERSION_PATHS_MAX: Final = 16 * MIB
"""UTF-8 bytes of all paths of a version together: 256 for each of VERSION_FILES_MAX. A directory
may stand in many places of a tree, so 8 KB of nodes can spell 256 MiB of paths."""

VERSION_LEAVES_MAX: Final = 4 * 1024 * KIB
"""Leaf blocks in a version: 4 TiB of full blocks, 250 MB of block table."""

VERSION_REPEATS_FREE: Final = 256 * KIB
"""Leaves, counted at every place, that any version may have: 256 GiB of zeros."""

VERSION_REPEATS_MAX: Final = 16
"""How many more it may have for each of its unique blocks. 96 KB of nodes could spell 4 million
leaves, which take 6 s and 200 MB to list; honest models repeat few blocks."""

TENSORS_PER_FILE_MAX: Final = 524_288
"""Tensors that a format parser lists in one file, about 250 bytes of memory each. The largest
mixture-of-experts models have about 150,000 in all shards together. Decides where blocks are cut
(docs/decisions/0006), so it is part of the format."""

TENSOR_DIMENSIONS_MAX: Final = 64
"""Dimensions of one tensor; PyTorch stops at 64. Part of the format, like the limit above."""

# -- exchange -----------------------------------------------------------------------------------

EXCHANGE_FRAME_MAX: Final = 64 * KIB
"""Bytes in one control frame. Documents and blocks follow their frame as raw bytes, so a frame
holds ids and bits only; the longest, a full HAVE_BITMAP, needs 32 KiB."""

EXCHANGE_DOCUMENT_MAX: Final = 4 * MIB
"""Bytes in a signed document that answers GET_VERSION or RESOLVE; what SignedDocument reads."""

EXCHANGE_REQUEST_BATCH: Final = 256
"""Digests in one REQUEST, CANCEL or REJECT: 256 MiB of full blocks in 9 KiB of frame."""

EXCHANGE_NODES_BATCH: Final = 64
"""CIDs in one GET_NODES. A tree node of 1024 links is about 50 KiB, so a batch is about 3 MiB."""

EXCHANGE_QUEUE_MAX: Final = 1024
"""Requests of one peer that wait to be served, 100 bytes each; more are rejected as busy."""

EXCHANGE_ASKED_MAX: Final = 16
"""GET_VERSION and RESOLVE of one peer that wait for their answer; an honest one has one or two."""

EXCHANGE_SUBSCRIPTIONS_MAX: Final = 64
"""Roots one peer may follow on one stream; each costs a bitmap of what it was told."""

EXCHANGE_HAVE_BATCH: Final = 4096
"""Indices in one HAVE: 20 KiB of frame at most. A whole bitmap is shorter beyond that."""

EXCHANGE_BITMAP_CHUNK: Final = 32 * KIB
"""Bytes of bitmap in one HAVE_BITMAP: 262,144 blocks."""

EXCHANGE_FEATURES_MAX: Final = 32
"""Features in a HELLO; version 1 defines none."""

EXCHANGE_TEXT_MAX: Final = 256
"""UTF-8 bytes in a feature, a version's name or the reason of a GOODBYE."""

EXCHANGE_PEER_ID_MAX: Final = 128
"""Bytes in a publisher's peer id. An Ed25519 id has 38, a hashed one 34."""

EXCHANGE_WANTS_MAX: Final = 4 * MIB
"""Bytes of WANTS kept for one stream, all its subscriptions together: 32 million blocks."""

EXCHANGE_RECORD_MAX: Final = 2 * KIB
"""Bytes in a peer record that is passed on; one with eight addresses has about 350."""

EXCHANGE_RECORDS_BATCH: Final = 16
"""Peer records in one PEERS, so that the longest is half a frame."""

EXCHANGE_RECORDS_RATE: Final = 128
"""Records of one peer that are looked at in the window below: each costs a signature check of about
0.15 ms. What is more than that is dropped unread."""

EXCHANGE_RECORDS_WINDOW_S: Final = 60.0

EXCHANGE_SLICE_FRAMES: Final = 256
"""Control frames taken from one read in one go, about 6 microseconds each: 1 MiB holds 350,000 of
the shortest, and the event loop would stand still for two seconds."""

EXCHANGE_SLICE_BYTES: Final = 16 * KIB
"""Bytes of control frames taken in one go, and what is left of the last frame: up to 16,000 block
indices, of about a microsecond each."""

EXCHANGE_OUTPUT_MAX: Final = 256 * KIB
"""Bytes of control answers that wait for the peer to read them; nothing more is read from it
meanwhile, so a peer that only asks and never reads stops itself."""

WEB_URL_MAX: Final = 2048
"""Characters in a URL, a redirect to a signed one included; browsers and servers take 2,000."""

WEB_SEEDS_MAX: Final = 16
"""Web seeds that a manifest names; the rest is ignored. Its meta value holds 4 KiB."""

FILE_BYTES_MAX: Final = 2**62
"""Bytes in a file: keeps every sum of sizes in 64 signed bits, as file systems and SQLite count."""

FILE_DEPTH_MAX: Final = 4
"""Levels of nodes over a leaf; 1024 links a node reach a pebibyte with 3."""

TREE_LINKS_MAX: Final = 4 * VERSION_FILES_MAX
"""Directory entries and links between file nodes in a version's tree; about 500 bytes each when
read. One for each file and directory, and one for each GiB of the largest files."""

# -- connections --------------------------------------------------------------------------------

UPGRADE_MAX_BYTES: Final = 64 * KIB
"""Bytes from a peer that is not authenticated yet. An honest upgrade takes about 500, and one with
every proposal and an RSA identity less than 24 KiB."""

UPGRADE_READ_BYTES: Final = 4 * KIB
"""Bytes taken from one read during the upgrade: what a half-open connection makes us hold."""

MANIFEST_MAX: Final = 64 * KIB
"""Bytes in a manifest; a real one has under 1 KiB, and a node keeps thousands of them."""

MODEL_NAME_MAX: Final = 128
"""Characters in a model's name; Hugging Face allows 96 for each half of `org/model`."""

PARENTS_MAX: Final = 64
"""Manifests that one version names as its parents: inputs of one merge."""

META_ENTRIES_MAX: Final = 64
"""Entries in a manifest's `meta`."""

META_KEY_MAX: Final = 64
"""UTF-8 bytes in a key of `meta`."""

META_VALUE_MAX: Final = 4 * KIB
"""Bytes in a text or byte string in `meta`: a description, not a document."""

TENSORS_MAX: Final = 1024 * KIB
"""Tensors in a version's index, about 500 bytes each when read. A 256-expert model of 61 layers
has 91,000 with its scales."""

TENSOR_PAGES_MAX: Final = 256
"""Pages of a tensor index, 1 MiB each: over 200 bytes for each of TENSORS_MAX."""

TENSOR_NAME_MAX: Final = 4 * KIB
"""UTF-8 bytes in a tensor's name; parameter paths in nested modules rarely pass 200."""

PROVIDER_KEY_MAX: Final = 80
"""Bytes in the key of a provider record, 1 at least: go's, py's and .NET's bound."""

PROVIDER_RECORDS_MAX: Final = 64 * KIB
"""Provider records that are kept for others, about 600 bytes each, and 1 KiB at most."""

PROVIDER_RECORDS_EACH: Final = 32 * KIB
"""Of them, those of one account: two models of 14,000 blocks, announced block by block."""

PROVIDERS_PER_KEY_MAX: Final = 256
"""Providers of one key. A reply tells of a part of them, and a fetch asks 64 peers at most."""

PROVIDERS_TOLD_MAX: Final = 64
"""Providers in one reply, before it is cut to KAD_SEND_MAX."""

PROVIDER_ADDRESSES_MAX: Final = 8
"""Addresses kept of one provider; endless lists were a hole elsewhere (telcoin-network#1185)."""

PROVIDER_ADDRESS_BYTES: Final = 512
"""Bytes of all addresses of one provider: eight of the longest that can be dialled here."""

ADD_PROVIDER_BURST: Final = 16 * KIB
"""ADD_PROVIDER that one account may send at once: every block of 14 GB, to a lone server."""

ADD_PROVIDER_RATE: Final = 4.0
"""ADD_PROVIDER a second after that: 22 models of that size in the 22 h after which to announce."""

VALUE_RECORDS_MAX: Final = 4 * KIB
"""Values that are kept for others: 40 MiB of the longest, 2 MiB of IPNS records as they are."""

VALUE_RECORDS_EACH: Final = 1 * KIB
"""Of them, those of one account."""

PUT_VALUE_BURST: Final = 64
"""PUT_VALUE that one account may send at once; each costs a signature to verify, 0.1 to 1 ms."""

PUT_VALUE_RATE: Final = 1.0
"""PUT_VALUE a second after that; an owner puts its record every four hours, on 20 servers."""

KAD_CONTACTS_SAVED_MAX: Final = 1 * KIB
"""Servers of the routing table that are written to a disk: half of them answer after a day."""

QUOTA_ACCOUNTS_MAX: Final = 4096
"""Accounts whose use of a quota is remembered, 200 bytes each; idle ones give way."""

# -- names --------------------------------------------------------------------------------------

IPNS_RECORD_MAX: Final = 10 * KIB
"""Bytes in an IPNS record, before it is parsed; every implementation's bound."""

IPNS_VALUE_MAX: Final = 4 * KIB
"""Bytes in what an IPNS record points to. `/ipfs/` and a CID take 65."""

CATALOG_MAX: Final = NODE_BLOCK_MAX
"""Bytes in a signed catalog, which travels as one block: about 9,000 models."""

CATALOG_OLDER_MAX: Final = 16
"""Versions before the newest that a catalog lists for one name."""

POINTERS_MAX: Final = 4 * KIB
"""Publishers whose best pointer is remembered, under 1 KiB each. A user chooses whom to resolve."""

CATALOGS_KEPT_MAX: Final = 64 * MIB
"""Bytes of catalogs that are kept to answer without the network; most have a few KiB."""

VERSIONS_KEPT_MAX: Final = 16 * KIB
"""Names whose highest version is remembered, about 1 KiB each."""

MIRRORED_MAX: Final = 64
"""Publishers whose catalogs are served for others, 1 MiB and a record in the DHT each."""

EVIDENCE_MAX: Final = 256
"""Contradictions that are kept, two signed statements each: two manifests take 128 KiB at most."""

LINK_TEXT_MAX: Final = 16 * KIB
"""Characters in a link, which people paste."""

LINK_PEERS_MAX: Final = 16
"""Addresses in a link."""

# -- Kademlia -----------------------------------------------------------------------------------

KAD_MESSAGE_MAX: Final = 256 * KIB
"""Bytes in one message that is accepted: 40 peers of 64 addresses are 100 KiB. go reads 4 MiB."""

KAD_SEND_MAX: Final = 16 * KIB
"""Bytes in one frame that is sent: all that rust-libp2p accepts."""

KAD_KEY_MAX: Final = 256
"""Bytes in the key of a message: a peer id or multihash in a namespace. Hashed, so never kept."""

KAD_VALUE_MAX: Final = 10 * KIB
"""Bytes in the value of a record: the IPNS specification's bound of one name record."""

KAD_RECEIVED_MAX: Final = 64
"""Bytes in the time at which a record was received; RFC 3339 with nanoseconds takes 35."""

KAD_CLOSER_MAX: Final = 40
"""Closer peers read from one reply: twice the bucket size, as go does."""

KAD_PROVIDERS_MAX: Final = 128
"""Providers read from one message. A reply below KAD_SEND_MAX holds at most 200 of one address."""

KAD_PEER_ADDRESSES_MAX: Final = 16
"""Addresses read of one peer in a message; 20 peers with 8 each are 7 KiB."""

KAD_QUERIES_MAX: Final = 300
"""Requests of one lookup. An honest one takes 20 to 60; liars could lead it on for ever."""

KAD_CANDIDATES_MAX: Final = 2048
"""Peers that one lookup has heard of and keeps, about 300 bytes each; the farthest give way."""

KAD_SERVED_STREAMS: Final = 256
"""Streams of requests that are served at once, each with one request at a time."""

KAD_SERVED_STREAMS_EACH: Final = 8
"""Those of one peer; an honest one needs one or two."""

KAD_REQUEST_BURST: Final = 1024
"""Requests that one account may make at once, ADD_PROVIDER excepted, which has a bound of its own.
A sweep asks one server a few dozen times; an office behind one address is one account."""

KAD_REQUEST_RATE: Final = 32.0
"""Requests a second after that; one takes about 0.3 ms of processor time."""

KAD_CHECKS_MAX: Final = 64
"""Candidates for the routing table that wait to be asked; what comes beyond is not noted."""

# -- namespaces ----------------------------------------------------------------------------------

NAMESPACE_NAME_MAX: Final = MODEL_NAME_MAX - 16
"""Characters in a namespace's name: a model is named after it, with a suffix for its records."""

NAMESPACE_DATA_MAX: Final = 1 * MIB
"""Bytes in one message of an application to another; what is larger is a model, and published."""

NAMESPACE_FRAME_MAX: Final = NAMESPACE_DATA_MAX + 64
"""Bytes in one frame: the longest message and its head."""

NAMESPACE_UPDATE_MAX: Final = 16 * KIB
"""Bytes in the signed document of an update; one with a parent has about 500."""

NAMESPACE_FEATURES_MAX: Final = 16
"""Features in a HELLO."""

NAMESPACE_TEXT_MAX: Final = 512
"""UTF-8 bytes in a name, a feature or a reason."""

NAMESPACE_CODEC_MAX: Final = 64
"""UTF-8 bytes in the name of a codec with its options."""

NAMESPACE_RECORD_MAX: Final = EXCHANGE_RECORD_MAX
"""Bytes in a peer record that is passed on."""

NAMESPACE_RECORDS_BATCH: Final = 16
"""Peer records in one message."""

NAMESPACE_ROUND_MAX: Final = 2**40
"""Highest number of a round: one each millisecond for 30 years."""

NAMESPACE_SAMPLES_MAX: Final = 2**40
"""Most samples that an update may claim; what they count for is the receiver's setting."""

NAMESPACE_UPDATES_RATE: Final = 1200
"""Updates of one peer in the window below: each costs a signature check. 20 rounds a second."""

NAMESPACE_UPDATES_WINDOW_S: Final = 60.0

# -- rounds of a namespace ------------------------------------------------------------------------

TOPOLOGY_TEXT_MAX: Final = 512
"""Characters of a topology's text form. A star with its centre has 57; TOPOLOGY_PARTS_MAX with
seeds fit."""

TOPOLOGY_PARTS_MAX: Final = 16
"""Topologies that follow each other round by round."""

TOPOLOGY_NUMBER_MAX: Final = 2**32 - 1
"""A degree, a number of columns or a seed in the text of a topology."""

ROUND_PEERS_MAX: Final = 4096
"""Peers of a namespace whose newest update is remembered, about 500 bytes each; who was heard of
longest ago gives way."""

ROUND_STALENESS_MAX: Final = 64
"""Rounds that an update may be late by in any setting. Weights stay short fractions."""

ROUND_REASON_MAX: Final = 256
"""UTF-8 bytes of the reason why an update was not merged."""

ROUND_RECORD_MAX: Final = 512 * KIB
"""Bytes in a round's record: every bound below reached at once. One of 16 peers has about 2 KB."""

ROUND_CONTRIBUTIONS_MAX: Final = 1024
"""Contributions in a round's record; also its rejections, and its missing peers."""

ROUND_WEIGHT_BYTES_MAX: Final = 256
"""Bytes of the common denominator of a round's weights. Mixing weights of 512 neighbours of
different degrees need 93."""

ROUND_METHOD_MAX: Final = 64
"""Characters in the name of a merge method."""

UPDATE_DESCRIPTION_MAX: Final = 64 * MIB
"""Bytes of the description in a compressed update: 60 for each of TENSORS_MAX and its name."""

CODEC_NAME_MAX: Final = 64
"""UTF-8 bytes of a codec's name with its options; what a namespace's HELLO allows."""
