"""Updates: a model becomes a signed version, and a member's version becomes a model again.

Theory of operation. Publishing takes a snapshot of the plugin's tensors, encodes it, writes one
safetensors file, and signs it as the next version of the model that the namespace is called after.
What everybody will decode it to is kept: that, and not the model as it was, is this node's own
input of the round, so that all peers merge the same bits. Codecs that use a parent get the update
before; whole ones go out when a member has joined, and every _WHOLE_EVERY updates.

Fetching goes over the exchange, from the publisher and from whoever else has it or is getting it.
Before a block is asked for, the version must be one file of the right name and not larger than
`size_factor` allows; after that its tensors must be this model's: names, dtypes, shapes.

Disk: of every peer, and of this node, updates that are more than `staleness_max` rounds old are
removed, with their versions; of records the newest `records_kept` stay.

Errors: UnfitError for an update that no one should merge, and other Sbp2pErrors for one that could
not be had now.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sbp2p import observe
from sbp2p.checkpoint.formats.layout import shown
from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import (
    CheckpointError,
    MergeError,
    NotFoundError,
    Sbp2pError,
    StoreBusyError,
    StoreError,
)
from sbp2p.exchange import Choice
from sbp2p.exchange import Source as Asked
from sbp2p.merge.compress.codec import Encoded, decode_update, get_codec
from sbp2p.merge.compress.content import content_digest
from sbp2p.merge.compress.description import DESCRIPTION, Description
from sbp2p.merge.tensors import FileSource, MemorySource, TensorSpec
from sbp2p.plugins.plugin import check_names
from sbp2p_protocol.limits import MIB
from sbp2p_protocol.link import ManifestLink
from sbp2p_protocol.namespace_messages import ROUNDS_SUFFIX, Update, update_meta

from .files import FOLDER, OWN, RECORDS, UPDATE_FILE, remove_folder, write_update

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sbp2p.exchange import FoundVersion
    from sbp2p.merge.compress.feedback import Feedback
    from sbp2p.merge.tensors import Source
    from sbp2p.node.values import Version
    from sbp2p.plugins.plugin import Plugin
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

    from .host import Host

PLAIN: Final = "lossless"
"""The codec of updates that are the model as it is: there is nothing to encode or decode."""
_WHOLE_EVERY: Final = 8
"""Updates in a row that may be made from each other: who misses one can read none until then."""
_FILE_BYTES: Final = 32 * MIB
"""Models from this size on are merged from their files, a piece at a time."""
_SWARM_BYTES: Final = 16 * MIB
_SLACK_BYTES: Final = 1 * MIB
"""What an update may have beyond its bound in proportion: headers, and tiny models."""


class UnfitError(Sbp2pError):
    """An update is malformed, too large, or of another model: its publisher is to blame."""


@dataclass(frozen=True, slots=True)
class Model:
    """An update, decoded: in memory, or in its file if it is the model as it is, and large."""

    update: Update
    source: Source = field(repr=False)
    bytes_received: int = 0
    decoded: Mapping[str, RawTensor] | None = field(default=None, repr=False)
    """What is in memory, if it is."""

    def tensors(self) -> Mapping[str, RawTensor]:
        """Return all of it in memory. Blocking."""
        if self.decoded is not None:
            return self.decoded
        return read_all(self.source)

    def close(self) -> None:
        """Close its file."""
        if isinstance(self.source, FileSource):
            self.source.close()


@dataclass(frozen=True, slots=True)
class OwnUpdate:
    """What this node has published."""

    model: Model
    version: Version

    @property
    def update(self) -> Update:
        """What members were told."""
        return self.model.update


class Updates:
    """The updates of one namespace at one node.

    Args:
        host: the node.
        name: of the namespace.
        codec: how this node's own updates are encoded.
    """

    def __init__(self, host: Host, name: str, codec: str) -> None:
        self._host = host
        self._name = name
        self._codec = None if codec == PLAIN else get_codec(codec)
        self._state: Feedback | None = None
        self._parent: Mapping[str, RawTensor] | None = None
        """What this node's last update decodes to, if the next one may be made from it."""
        self.shared: Mapping[str, RawTensor] | None = None
        """What the last round ended with, if it did so for everybody who heard the same: what
        codecs that leave much out make their updates from."""
        self._joined = -1
        self._since_whole = 0
        self._decoded: dict[PeerId, Mapping[str, RawTensor]] = {}
        """The last of each peer whose updates are made from the ones before."""
        self._folder = host.home.resolve() / FOLDER / name

    async def last_round(self) -> int:
        """Return the last round that this node has published for, as its store knows; 0 if none."""

        def look() -> int:
            own = self._host.peer_id.to_bytes()
            found = 0
            for version in self._host.store.versions():
                meta = version.manifest.meta
                number = meta.get("round")
                if version.name == self._name and meta.get("peer") == own:
                    found = max(found, number if type(number) is int else 0)
            return found

        return await self._host.calls.run_to_end(look)

    async def publish(
        self, plugin: Plugin, round_number: int, samples: int, joined: int
    ) -> OwnUpdate:
        """Sign a model's state as this node's update of a round.

        Args:
            plugin: the model.
            round_number: of the round.
            samples: that it was trained on.
            joined: how often a member has joined so far: whoever is new has no parent.
        """
        calls = self._host.calls
        tensors = await calls.run_to_end(plugin.tensors)
        is_whole = joined != self._joined or self._since_whole >= _WHOLE_EVERY
        is_shared = self._codec is not None and self._codec.shares_parent
        parent = None if is_whole else self.shared if is_shared else self._parent
        encoded = await calls.run_to_end(self._encode, tensors, parent)
        folder = self._folder / OWN / str(round_number)
        path = await calls.run_to_end(write_update, folder, encoded.tensors, encoded.metadata)
        record, version = await self._host.publish(
            path,
            name=self._name,
            meta=update_meta(
                self._host.peer_id, round=round_number, samples=samples, codec=self.codec
            ),
            parents=(),
        )
        self._state, self._joined = encoded.state, joined
        if self._codec is not None and self._codec.uses_parent:
            self._parent = encoded.result
            self._since_whole = 1 if parent is None else self._since_whole + 1
        update = Update(record.document, record.manifest, round_number, samples, self.codec)
        source = MemorySource(encoded.result)
        return OwnUpdate(Model(update, source, decoded=encoded.result), version)

    @property
    def codec(self) -> str:
        """How this node's own updates are encoded."""
        return PLAIN if self._codec is None else self._codec.text

    def _encode(
        self, tensors: Mapping[str, RawTensor], parent: Mapping[str, RawTensor] | None
    ) -> Encoded:
        if self._codec is None:
            return Encoded(tensors, tensors)
        return self._codec.encode(tensors, parent, self._state)

    async def fetch(
        self,
        peer_id: PeerId,
        update: Update,
        others: Iterable[PeerId],
        own: Mapping[str, TensorSpec],
    ) -> Model:
        """Get a member's update, and decode it.

        Args:
            peer_id: who published it.
            update: what it said.
            others: who may have it, too.
            own: this node's model, which it must be like; any model if empty.

        Raises:
            UnfitError: it must not be merged.
            Sbp2pError: it could not be had.
        """
        expected = sum(spec.nbytes for spec in own.values())
        bytes_max = self._host.config.update_bytes_max
        if own:
            bytes_max = int(self._host.config.size_factor * expected) + _SLACK_BYTES
        folder = self._folder / str(peer_id) / str(update.round)
        # a small one comes from its publisher sooner than others can be asked for parts of it
        is_large = not own or expected >= _SWARM_BYTES
        connected = self._host.swarm.connections(peer_id)
        sources = [Asked(peer_id)] if connected else []
        if is_large or not connected:
            sources += [Asked(each) for each in others if each != peer_id]
        result = await self._host.exchange.fetch(
            ManifestLink(update.cid),
            folder,
            sources=sources,
            choose=lambda found: _check_version(found, bytes_max),
            overwrite=True,
            pinned=False,
            learns=is_large,
            in_order=not is_large,  # so the seed shows all of it, and holds back nothing for others
        )
        path, parents = folder / UPDATE_FILE, (self._decoded.get(peer_id), self.shared)
        tensors, is_parent = await self._host.calls.run_to_end(_read, path, own, parents, bytes_max)
        if isinstance(tensors, FileSource):
            return Model(update, tensors, result.bytes_received)
        if is_parent:
            self._decoded[peer_id] = tensors
        return Model(update, MemorySource(tensors), result.bytes_received, tensors)

    def forget(self, peers: Iterable[PeerId]) -> None:
        """Keep the last models of these peers only: the others have left."""
        kept = set(peers)
        self._decoded = {peer: each for peer, each in self._decoded.items() if peer in kept}

    # -- room on disk -----------------------------------------------------------------------------

    async def clean(self, keep_from: int, kept: Cid | None) -> None:
        """Remove the updates of rounds before `keep_from`, but for one, and old records."""
        try:
            await self._host.calls.run_to_end(self._clean, keep_from, kept)
        except StoreError as error:
            observe.report_not_saved("the room that old rounds take", error)

    def _clean(self, keep_from: int, kept: Cid | None) -> None:
        records = []
        for version in self._host.store.versions():
            if self._folder not in version.root_path.parents or version.cid == kept:
                continue
            number = version.manifest.meta.get("round")
            if version.name == self._name + ROUNDS_SUFFIX and isinstance(number, int):
                records.append((number, version.cid, version.root_path))
            elif version.name == self._name and isinstance(number, int) and number < keep_from:
                self._remove(version.cid, version.root_path)
        for _, cid, path in sorted(records, key=lambda each: each[0])[
            : -self._host.config.records_kept
        ]:
            self._remove(cid, path)

    def _remove(self, cid: Cid, path: Path) -> None:
        try:
            self._host.store.remove_version(cid, path, delete_files=True)
        except (NotFoundError, StoreBusyError):
            return  # somebody else has removed it, or needs it now
        remove_folder(path)

    @property
    def records_folder(self) -> Path:
        """Where the records of rounds are written."""
        return self._folder / RECORDS


def _check_version(found: FoundVersion, bytes_max: int) -> Choice:
    """Refuse a version that is not one file of the right size, before any of it is asked for."""
    files = found.table.files
    if len(files) != 1 or files[0].path != UPDATE_FILE:
        raise UnfitError(f"an update that is not the one file {UPDATE_FILE}")
    if files[0].size > bytes_max:
        raise UnfitError(f"an update of {files[0].size} bytes: over {bytes_max}")
    return Choice(found.table.blocks_of_files(range(1)))


def _read(
    path: Path,
    own: Mapping[str, TensorSpec],
    parents: Iterable[Mapping[str, RawTensor] | None],
    bytes_max: int,
) -> tuple[FileSource | dict[str, RawTensor], bool]:
    """Return the model in an update's file, which is one like `own`, and whether it was encoded.

    A large one that is the model as it is stays in its file, which the caller closes.

    Raises:
        UnfitError: it is malformed, or another model.
        NotFoundError: it is made from another model than one of `parents`.
    """
    try:
        source = FileSource(path)
        with ExitStack() as stack:
            stack.callback(source.close)
            specs = source.specs()
            encoded = DESCRIPTION in specs
            if not encoded:
                _check_specs(specs, own)
                if sum(spec.nbytes for spec in specs.values()) >= _FILE_BYTES:
                    stack.pop_all()
                    return source, False
            stored = read_all(source)
        if encoded:
            stored = decode_update(stored, _parent_of(stored, parents), bytes_max=bytes_max)
            _check_specs(MemorySource(stored).specs(), own)
    except (CheckpointError, MergeError) as error:
        raise UnfitError(str(error)) from error
    return stored, encoded


def read_all(source: Source) -> dict[str, RawTensor]:
    """Return all tensors of a source in memory."""
    found = {}
    for name, spec in source.specs().items():
        data = memoryview(bytearray(spec.nbytes))
        source.read_into(name, 0, data)
        found[name] = RawTensor(name, spec.dtype, spec.shape, data)
    return found


def _check_specs(found: Mapping[str, TensorSpec], own: Mapping[str, TensorSpec]) -> None:
    """Raise MergeError unless a model is like this node's; any is if that is empty."""
    if not own:
        return
    check_names(found, own)
    for name, spec in own.items():
        if found[name] != spec:
            other = found[name]
            raise MergeError(
                f"tensor {shown(name)} is {other.dtype} of the shape {other.shape}, and "
                f"{spec.dtype} of the shape {spec.shape} in this model",
                hint="every peer has to build its model alike",
            )


def _parent_of(
    stored: Mapping[str, RawTensor], parents: Iterable[Mapping[str, RawTensor] | None]
) -> Mapping[str, RawTensor] | None:
    """Return what an update is made from; NotFoundError if that is not here."""
    wanted = Description.read(stored).parent
    if wanted is None:
        return None
    for parent in parents:
        if parent is not None and content_digest(parent) == wanted:
            return parent
    # its publisher is honest
    raise NotFoundError(
        "made from an update that is not here",
        hint="the next whole one can be read; use a codec without parents if many are missed",
    )
