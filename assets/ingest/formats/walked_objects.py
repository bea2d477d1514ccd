"""A source of raw objects in walked formats, and the facts of their samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from loader.dataset.columnar.choices import ColumnarOptions
from loader.dataset.columnar.json_members import JsonMembers
from loader.errors import Changed, NotSupported, ObjectNotFound, PenstockError
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_place
from penstock.card.classes import fields_modality
from penstock.compute.pool import is_fault
from penstock.formats.reading.sample import ForeignShard, FoundObjects, object_shards
from penstock.formats.registration.shard_rows import Rows, shard_rows
from penstock.formats.registry import registered_named

from ...arrivals.joined_objects import JoinedObjects
from ...media.objects import check_folder, refusal_row
from ...media.unit import Unusable, dropped, not_supported, rejected
from ...sources import companions
from ..refusals import DUPLICATE
from .sample_facts import OWN_COLUMNS, IngestRules, Row, key_in_dataset, sample_metadata, sample_provenance

if TYPE_CHECKING:
    from ...pipeline.stages import OpenBatch

Place = TypeVar("Place")


def object_info(landing: Store, row: Mapping[str, Any]) -> ObjectInfo:
    """Return the store's facts about a landed object. Raises: Unusable if replaced; StoreError."""
    key = row["key"]
    try:
        info = landing.head(key)
    except ObjectNotFound as error:
        check_folder(landing)
        raise dropped("fetch", type(error).__name__, error) from error
    if info.nbytes != row["nbytes"] or info.etag != row["etag"]:
        why = "the object is not the one that landed; it lands again"
        if isinstance(landing, JoinedObjects):
            newest_file = landing.newest_file(key)
            why += f"; its newest file is {newest_file}"
        raise dropped("fetch", Changed.__name__, why)
    return info


def fresh_objects(batch: "OpenBatch") -> tuple[list[ObjectInfo], list[Row]]:
    """Return the admitted objects that are new to the dataset, in key order, and refusals of the others."""
    infos = list[ObjectInfo]()
    refusals = list[Row]()
    for row in batch.audits:
        key = row["key"]
        sha256 = row["sha256"]
        try:
            if sha256 in batch.published:
                raise dropped("dedup", DUPLICATE, f"the same bytes as {batch.published[sha256]}")
            info = object_info(batch.landing, batch.raws[key])
            infos.append(info)
        except Unusable as unusable:
            refusals.append(refusal_row(key, sha256, unusable))
    infos.sort(key=attrgetter("key"))
    return infos, refusals


@contextmanager
def refuse_unreadable(stage: str) -> Iterator[None]:
    """Turn an object's error into its refusal by this stage: damaged, not supported, or replaced.

    Raises: Unusable; errors of code, machine or store (`is_fault`).
    """
    try:
        yield
    except Changed as error:
        raise dropped("fetch", Changed.__name__, error) from error
    except NotSupported as error:
        raise not_supported(stage, NotSupported.__name__, error) from error
    except PenstockError as error:
        if is_fault(error):
            raise
        raise rejected(stage, type(error).__name__, error) from error


def wrong_format(format: str) -> Unusable:
    """Return the refusal of an object that is not of this format."""
    why = f"it is not of the format {format}, or no file beside it describes it"
    return dropped("probe", "type_not_taken", why)


class WalkedPlace:
    """Raw objects of a walked format, in their source."""

    def __init__(self, landing: Store, format: str, options: ColumnarOptions) -> None:
        """Open the source. Costs a listing if an index describes all objects."""
        self.landing = landing
        self._options = options
        self._name = format
        self._format = registered_named(format)
        # The reader of all objects, or why there is none; None if each object describes itself.
        self._all: FoundObjects | PenstockError | None = None
        self._has_members = False
        self.members = JsonMembers()
        """JSON values that became no column."""
        if companions(format):
            try:
                self._all = self._format.find_objects(landing, list(list_place(landing)))
            except PenstockError as error:
                if is_fault(error):
                    raise
                # Raised again for each object, so that each has a refusal with this reason.
                self._all = error

    @property
    def objects_per_shard(self) -> int:
        """Most objects that one index may describe."""
        return self._format.OBJECTS_PER_SHARD

    @property
    def has_members(self) -> bool:
        """True once JSON documents become columns."""
        return self._has_members

    def find_object(self, info: ObjectInfo) -> FoundObjects:
        """Return an object's reader, which adds to `members`.

        Raises: Unusable for another format; errors of the format.
        """
        if isinstance(self._all, PenstockError):
            raise self._all
        objects = self._all
        if objects is None:
            objects = self._format.find_objects(self.landing, [info])
        keys = {described.key for described in objects.infos}
        if info.key not in keys:
            raise wrong_format(self._name)
        if objects.members is not None:
            self._has_members = True
        return objects.reading(self._options.without, OWN_COLUMNS, self.members)

    def has_samples(self, info: ObjectInfo) -> bool:
        """Walk an object to its end; return whether it has a sample."""
        (shard,) = object_shards([info], 1)
        return bool(self.rows(shard))

    def rows(self, shard: ForeignShard) -> Sequence[Rows]:
        """Return the rows of a shard, in runs with the same fields."""
        samples_of_objects = []
        for info in shard.infos:
            reader = self.find_object(info)
            samples_of_objects.append(reader.samples(info))
        return shard_rows(shard, samples_of_objects, self._options.without)


def cache_sources(
    open_source: Callable[[Store, str, ColumnarOptions], Place],
) -> Callable[[str, Store, str, ColumnarOptions], Place]:
    """Return `open_source` with a first argument `pass_id`, whose latest source each process caches.

    pass_id: id of one audit or one transaction. Its tasks follow each other in a worker, and opening a source may
    list it.
    """
    opened: dict[str, Place] = {}  # pass id -> source; at most one

    def open_cached(
        pass_id: str,
        files: Store,
        format: str,
        options: ColumnarOptions,
    ) -> Place:
        if pass_id not in opened:
            opened.clear()
            opened[pass_id] = open_source(files, format, options)
        return opened[pass_id]

    return open_cached


walked_place = cache_sources(WalkedPlace)


@dataclass(frozen=True, slots=True)
class KnownSample:
    """Facts of a sample, known before its bytes are read."""

    key: str
    """Key in the dataset."""
    metadata: Mapping[str, Any]
    """Column -> value."""
    source: Mapping[str, str]
    """Provenance column -> value."""
    has_own_split: bool
    """True if its format names the split."""


def sample_facts(
    rules: IngestRules,
    shard: ForeignShard,
    rows: Rows,
    raws: Mapping[str, Row],
) -> Iterator[KnownSample]:
    """Yield the facts of each of these rows of a shard. raws: key of an object -> its row of `raw_objects`."""
    kind = fields_modality(set(rows.fields))
    longest_name = max(map(len, rows.fields))
    # A shard's objects are addressed as if they followed each other.
    object_starts: dict[str, int] = {}  # first byte in the shard, by key
    for info, start in zip(shard.infos, shard.offsets, strict=True):
        object_starts[info.key] = start
    for source_key, object_key, columns, format_provenance, spans in zip(
        rows.source_keys,
        rows.objects,
        rows.each_metadata(),
        rows.sources,
        rows.spans(),  # int64 [fields, 2] of each row: offset in the shard, bytes
        strict=True,
    ):
        raw = raws[object_key]
        source = sample_provenance(rules, raw, source_key, format_provenance)
        if rules.format != "files":  # the object contains several samples
            object_start = object_starts[object_key]
            field_starts = spans[:, 0]
            field_ends = spans.sum(axis=1)
            begin = int(field_starts.min()) - object_start
            end = int(field_ends.max()) - object_start
            source["raw_start"] = f"byte {begin}"
            source["raw_end"] = f"byte {end}"
        yield KnownSample(
            key=key_in_dataset(raw, source_key, longest_name),
            metadata=sample_metadata(rules, raw, columns, kind),
            source=source,
            has_own_split=bool(rules.own_split(format_provenance)),
        )
