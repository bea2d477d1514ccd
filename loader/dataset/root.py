"""A root: the folder or bucket prefix that holds datasets, their history and everything derived from them."""

import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import Conflict, InvalidStore
from ..storage import Store, is_local, open_store
from ..storage.mirror import MirroredStore, primary_store
from ..storage.threads import in_background
from .log.heartbeats import Heartbeat
from .log.leases import Lease, close_in_finalizer
from .log.log import Log
from .log.marker import Marker, root_id
from .log.refs import dataset_versions, explain_mirror_lag, resolve
from .log.state import RefKind, State, VersionRecord
from .names import check_dataset_name
from .progress import Watch, unwatched
from .reading.version_shards import ShardsFiles, Verify, check_verify
from .shards.shard import DEFAULT_SHARD_BYTES
from .versions.version import Version

if TYPE_CHECKING:  # writing methods import these: 100 ms that readers save at startup
    from .labels.annotate import AnnotationResult
    from .publishing.writer import Writer
    from .shards.part import Part
    from .slices import Samples
    from .tables.slice_record import SliceRecord

Facts = Mapping[str, Mapping[str, Any]]
Mirror = str | os.PathLike[str] | tuple[str | os.PathLike[str], Mapping[str, Any]]
"""A mirror's URL, or (URL, options of its store)."""


class Root:
    """A folder or bucket prefix with datasets, opened at first use. Thread-safe; pickles without secrets.

    The first write creates the root. Reading a location that is not a root raises NotARoot.

    Args:
        url: Local path, or any URL that obstore or fsspec opens; None reads the environment variable PENSTOCK_ROOT.
        options: Credentials and settings for the store, named as in obstore or fsspec.
        mirrors: Other roots with the same id (`penstock migrate`), each a URL or (URL, options). Reads go to the
            nearest store that is up, and to the next one for objects that it lacks. All writes go to `url`.
        verify: Checks on samples. "crc32c" checks each field and detects accidents. "sha256" also checks shard pages at
            first use, which detects a replaced shard (docs/security.md).
    """

    store: Store
    """With mirrors, one store that combines them."""
    verify: Verify
    """Checks on samples: "crc32c" or "sha256"."""

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        mirrors: Sequence[Mirror] = (),
        verify: Verify = "crc32c",
    ) -> None:
        check_verify(verify)
        if url is None and not (url := os.environ.get("PENSTOCK_ROOT")):
            raise InvalidStore("no root given: pass a path or URL, or set PENSTOCK_ROOT", what="url")
        stores = [open_store(url, options)]
        for mirror in mirrors:
            mirror_url, mirror_options = mirror if isinstance(mirror, tuple) else (mirror, None)
            stores.append(open_store(mirror_url, mirror_options))
        if len(stores) == 1:
            self._use(stores[0], verify)
        else:
            self._use(MirroredStore(stores, root_id), verify)

    def _use(self, store: Store, verify: Verify = "crc32c", like: "Root | None" = None) -> None:
        self.store = store
        self.verify = verify
        self._marker: Marker = Marker(store) if like is None else like._marker
        self._log = Log(store, self._marker.check, self._marker.check_writable)
        self._lease = Lease(store)
        self.shards_files: ShardsFiles = weakref.WeakValueDictionary()
        finalizer = weakref.finalize(self, close_in_finalizer, self._lease)
        finalizer.atexit = False  # `leases` closes all of them at exit

    def __reduce__(self) -> Any:
        return root_in_store, (self.store, self.verify)

    def __repr__(self) -> str:
        return f"Root({self.store.url!r})"

    @property
    def url(self) -> str:
        """URL of the root, without secrets."""
        return self.store.url

    @property
    def mirror_of(self) -> str | None:
        """URL of the primary, if this root is a mirror; else None. Raises: NotARoot; FormatTooNew; StoreError."""
        return self._marker.mirror_of

    @property
    def alone(self) -> "Root":
        """The root at `url` without its mirrors; the root itself if it has none."""
        store = primary_store(self.store)
        return self if store is self.store else root_in_store(store, self.verify)

    @property
    def log(self) -> Log:
        """The root's history. Raises: NotARoot; FormatTooNew."""
        self._marker.check()
        return self._log

    @property
    def state(self) -> State:
        """The current state of the history. Raises: NotARoot; FormatTooNew; Corrupt."""
        return self._log.state

    def open(self, ref: str, *, retired: bool = False) -> Version:
        """Return the version that `name@number`, `name@latest`, `name@alias`, `name@tag`, `name` or `v-<hash>` names.

        Writes a lease, which shows a collector that it is in use; with read-only credentials it logs one warning
        instead. retired: also open retired versions. Raises: VersionNotFound; VersionRetired; NotARoot; FormatTooNew;
        Corrupt.
        """
        if self._log.is_unread and not retired and not is_local(self.store):
            from .versions.planned_versions import open_guessed

            return open_guessed(self, ref)
        return self._open(self.record(ref, retired=retired), retired=retired)

    def datasets(self) -> list[str]:
        """Return the sorted names of all datasets that have a version."""
        return sorted(name for name, versions in self.state.datasets.items() if versions)

    def versions(self, dataset: str) -> list[VersionRecord]:
        """Return every version of a dataset, oldest first. Raises: VersionNotFound."""
        return dataset_versions(self.store, self._marker, self.state, dataset)

    def record(self, ref: str, *, retired: bool = False) -> VersionRecord:
        """Return a version's record in the log, without opening it. Raises: VersionNotFound; VersionRetired."""
        state = self.state
        with explain_mirror_lag(self.store, self._marker, state):
            return resolve(state, ref, retired=retired)

    def create(self) -> None:
        """Make an empty location a root now. Repeating it changes nothing.

        Raises: NotARoot if the location holds other objects; FormatTooNew; InvalidStore if creates overwrite objects.
        """
        self._marker.create()

    def create_if_empty(self) -> None:
        """Make an empty location a root, for a training's first record; leave others as they are. One request, once."""
        self._marker.create_if_empty()

    def save_start(self, plan: str, body: Mapping[str, Any]) -> None:
        """Store what a start with this plan requests first: `loader.dataset.log.start_notes.write_start`."""
        from .log.start_notes import write_start

        write_start(self.store, self._log.known, plan, body)

    def write(
        self,
        dataset: str,
        *,
        group: str = "media",
        groups: Mapping[str, str] | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        part_samples: int | None = None,
        producer: Mapping[str, Any] | None = None,
        facts: Facts | None = None,
    ) -> "Writer":
        """Return a writer that publishes, on a clean exit, a version with the newest version's samples plus its own.

        Samples are shuffled by the hash of their key and cut into parts of about `shard_bytes` or exactly
        `part_samples`. `group` stores all fields that `groups` (field -> group) does not assign. `facts` are as for
        `publish`.
        """
        from .publishing.writer import Writer

        return Writer(
            self,
            check_dataset_name(dataset),
            group=group,
            groups=groups,
            shard_bytes=shard_bytes,
            part_samples=part_samples,
            producer=producer,
            facts=facts,
        )

    def begin(
        self, dataset: str, parent: str | None = None, txn: str | None = None, *, gated: bool = False
    ) -> str:
        """Return a transaction for the dataset's next version, for `write_part` and `publish`.

            parent: the ref that the work is based on; None for the newest.
            txn: a name, so that a retried step gets the same transaction.
            gated: True requires a gate's verdict before the parts are published.

        Raises: InvalidName; VersionRetired; Fenced; Conflict if `txn` belongs to another dataset, or began without the
        gate.
        """
        self.create()
        state = self._log.state
        record = state.newest(check_dataset_name(dataset))
        if parent:
            record = resolve(state, parent)
        parent_id = None
        if record is not None:
            if record.dataset != dataset:
                message = f"parent {record.name} is not a version of {dataset!r}"
                raise Conflict(message, what="parent", given=record.name, accepted=dataset)
            parent_id = record.id
        return self._log.begin(dataset, parent_id, txn=txn, gated=gated).txn

    def abort(self, txn: str, reason: str) -> None:
        """Abort a transaction: it can no longer be committed."""
        self.log.abort(txn, reason)

    def heartbeat(self, txn: str) -> Heartbeat:
        """Return a context manager that shows a collector that the transaction is alive."""
        return Heartbeat(self.store, txn)

    def publish(
        self,
        dataset: str,
        parts: "Sequence[Part]",
        parent: str | None = None,
        *,
        exclude: Mapping[str, str] | None = None,
        supersede: Mapping[str, str] | None = None,
        onto: str | None = None,
        verdict: str = "",
        foreign: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
        facts: Facts | None = None,
    ) -> Version:
        """Publish one version from parts that any number of workers wrote with one transaction.

        The parts are added to the dataset's newest version, even if another writer published meanwhile. Publishing a
        committed transaction again returns its version.

            parent: a ref that must exist and not be retired.
            exclude: key -> reason, for samples of these parts to leave out.
            supersede: key -> reason, for samples of the newest version that these parts replace, in the same log entry.
            onto: id that the newest version must have, else Conflict; "" if the dataset must have no version.
            verdict: path of the stage record that accepted exactly these parts. Gated transactions need it.
            foreign: table of the objects with the parts' bytes, if these stay in other locations.
            producer: facts for the manifest (run id, code version).
            facts: field -> {"tokenizer", "tokenizer_sha256", "unit", "dims", "labels" ...}, kept by later versions
                (docs/format.md).

        Raises: DuplicateKey; FieldMismatch; InvalidSample if parts have another transaction's files;
        TransactionNotFound; Fenced; StageNotPublished if the verdict is missing or for another change; Corrupt;
        Conflict, also if another writer excluded a superseded sample meanwhile; VersionNotFound; EmptyVersion.
        """
        from .publishing.publish import publish_parts

        version = publish_parts(
            self,
            dataset,
            parts,
            parent,
            exclude=exclude or {},
            producer=producer,
            supersede=supersede or {},
            onto=onto,
            verdict=verdict,
            facts=facts,
            foreign=foreign,
        )
        return self._verifying(version)

    def add_group(
        self,
        ref: str,
        group: str,
        compute: Mapping[str, Callable[[Mapping[str, Any]], Any]],
        *,
        inputs: Sequence[str] | None = None,
        producer: Mapping[str, Any] | None = None,
        facts: Facts | None = None,
    ) -> Version:
        """Add fields to existing samples, in separate shards.

        compute: field -> function of the sample (a mapping of its decoded fields, read on request). inputs: fields that
        the functions read, None for all. Parts that lack an input, or already have the group, stay unchanged.

        Raises: Conflict if there is nothing to add or another writer added it; FieldNotFound.
        """
        from .publishing.publish import publish_group

        return self._verifying(publish_group(self, ref, group, compute, inputs, producer, facts))

    def annotate(
        self,
        ref: str,
        name: str,
        rows: Any,
        *,
        author: str,
        key: str = "key",
        on: str = "key",
        columns: Sequence[str] | None = None,
        nulls: str = "keep",
        strict: bool = False,
        last_wins: bool = False,
        producer: Mapping[str, Any] | None = None,
        watch: Watch = unwatched,
    ) -> "AnnotationResult":
        """Add metadata columns to existing samples, or change values in existing columns.

        They form the column group `name`. Earlier values and versions stay. Rows may have their own `annotated_by` and
        `annotated_at_us`.

            rows: path or URL of a .parquet, .jsonl, .csv or .tsv file, Arrow table, mapping key -> values, or mappings.
            key: column of the rows to look up in the samples' column `on`; a value may match several samples.
            on: "key", "source_key", "raw_key", or another column of texts, such as "path".
            columns: columns to take; None takes all.
            nulls: "keep" earlier values, or "remove" them.
            strict: reject keys that no sample has, which are otherwise counted in `join`.
            last_wins: take the last row of a duplicate key, which otherwise raises DuplicateKey.
            watch: reports progress (`loader.dataset.progress`).

        Raises: Conflict if another writer annotated one of these values since `ref`; FieldMismatch if a value's type
        differs from the column's; InvalidSample, InvalidField, InvalidKey, DuplicateKey with file and line.
        """
        from .labels.annotate import AnnotationOptions
        from .publishing.publish import publish_annotation

        options = AnnotationOptions(
            name=name,
            author=author,
            key=key,
            on=on,
            columns=columns,
            nulls=nulls,
            strict=strict,
            last_wins=last_wins,
            watch=watch,
        )
        done = publish_annotation(self, ref, rows, options, producer)
        done.version.verify = self.verify
        return done

    def exclude(
        self, ref: str, keys: Sequence[str], *, reason: str, producer: Mapping[str, Any] | None = None
    ) -> Version:
        """Return the next version without these samples. Their bytes stay until a takedown; later ordinals decrease.

        Raises: SampleNotFound for a missing key; InvalidSample if a key or the reason is not text; Conflict if another
        writer excluded one of them meanwhile.
        """
        from .publishing.publish import publish_exclusions

        return self._verifying(publish_exclusions(self, ref, keys, reason, producer))

    def save_slice(
        self, ref: str, name: str, samples: "Samples", *, by: str, why: str, page: str = ""
    ) -> "SliceRecord":
        """Name samples of a version: `version.slice(name)` has them, `version.without(name)` the others.

        samples: keys, version ordinals, or a view of the version, saved as a list; or SQL text, saved as a rule that
        grows with versions. Raises: as `loader.dataset.slices.save_slice`.
        """
        from .slices import save_slice

        return save_slice(self, ref, name, samples, by=by, why=why, page=page)

    def retire(self, ref: str, *, reason: str) -> None:
        """Retire a version for good: opening it raises VersionRetired. Raises: InvalidName if the reason is no text."""
        record = resolve(self.state, ref, retired=True)
        self._log.retire(record.dataset, record.number, reason)

    def tag(self, ref: str, name: str) -> None:
        """Give a version a name that never moves. Raises: Conflict if it is another version's; InvalidName."""
        self._ref(ref, name, "tag")

    def alias(self, ref: str, name: str) -> None:
        """Give a version a name that may move later. Raises: Conflict if the alias moved meanwhile; InvalidName."""
        self._ref(ref, name, "alias")

    def hold(self, ref: str, *, by: str, why: str) -> None:
        """Keep a version's bytes until `release`, even if it is retired later. Repeating it changes nothing.

        by: a person, a job or a case. Raises: VersionRetired.
        """
        record = resolve(self.state, ref)
        self._log.hold(record.dataset, record.number, by, why)

    def release(self, ref: str, *, by: str) -> bool:
        """Release a hold on a version; False if `by` holds none."""
        record = resolve(self.state, ref, retired=True)
        return self._log.release(record.dataset, record.number, by)

    def close(self) -> None:
        """Release the lease and connections."""
        self._lease.close()
        self.store.close()

    def __enter__(self) -> "Root":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep_leases(self, version_ids: Collection[str]) -> None:
        """Release the leases on all opened versions but these ids. Read the others no more: they may be deleted."""
        self._lease.keep(version_ids)

    def renew_leases(self) -> None:
        """Renew the lease on the opened versions now. A background thread also renews it."""
        self._lease.beat()

    def _open(self, record: VersionRecord, *, retired: bool = False) -> Version:
        # Objects read while the lease is written are checked against their sha256, and returned once it holds.
        with in_background(self._read, record) as reading:
            if self._lease.add(record.id):  # only the first of several threads writes it
                # A lease protects only from later retirements: read the log again.
                resolve(self.state, record.id, retired=retired)
            version = reading.result()
        version.reader = self  # keeps the lease while the root or a version is alive
        return version

    def _read(self, record: VersionRecord, manifest: dict[str, Any] | None = None) -> Version:
        version = self._verifying(Version.of_record(self.store, record, manifest))
        version.shards_files = self.shards_files  # a step's version has nearly all files of the one before
        version.prepare()
        return version

    def _verifying(self, version: Version) -> Version:
        version.verify = self.verify
        return version

    def _ref(self, ref: str, name: str, kind: RefKind) -> None:
        state = self.state
        record = resolve(state, ref)
        known = state.refs.get((record.dataset, name))
        was = known.number if known else None
        self._log.ref(record.dataset, name, kind, record.number, was=was)


def root_in_store(store: Store, verify: Verify = "crc32c", like: Root | None = None) -> Root:
    """Return the root in an open store. like: the same root, opened earlier, whose marker is valid."""
    root = Root.__new__(Root)
    root._use(store, verify, like)
    return root
