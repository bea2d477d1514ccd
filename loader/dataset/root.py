"""A root: the folder or bucket prefix under which datasets, their history and everything derived lie."""

import json
import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import (
    AlreadyExists,
    Conflict,
    FormatTooNew,
    InvalidSample,
    InvalidStore,
    NotARoot,
    ObjectNotFound,
    VersionNotFound,
)
from ..storage import Store, open_store
from .entries import canonical
from .heartbeat import Heartbeat, Lease
from .history import State, VersionRecord
from .log import Log
from .names import check_dataset_name, resolve
from .part import Part
from .publish import FreeGroup, NewKeys, Pending, check_producer, commit, open_record
from .runs import check_parts, write_group_run, write_run
from .version import Version
from .writer import DEFAULT_SHARD_BYTES, Writer

logger = logging.getLogger(__name__)

FORMAT = 1
MARKER = "penstock.json"
_PROBES = "heartbeats/probe-"


class Root:
    """Opens nothing until it is used; thread-safe; pickles as its URL and non-secret options.

    url: a local path, or any URL that obstore or fsspec opens; without one, the environment's PENSTOCK_ROOT.
    options: credentials and settings for the store, in the names that obstore or fsspec use. The root is created
    at the first write; reading a place that is not a root raises NotARoot.
    """

    def __init__(
        self, url: str | os.PathLike[str] | None = None, *, options: Mapping[str, Any] | None = None
    ) -> None:
        if url is None:
            url = os.environ.get("PENSTOCK_ROOT")
            if not url:
                raise InvalidStore("no root given: pass a path or URL, or set PENSTOCK_ROOT")
        self.store: Store = open_store(os.fspath(url), options)
        self._log = Log(self.store)
        self._known = False
        self._leases: dict[str, Lease] = {}
        weakref.finalize(self, _release, self._leases)  # also at the end of the process

    def __reduce__(self) -> Any:
        return _rebuild, (self.store,)

    def __repr__(self) -> str:
        return f"Root({self.store.url!r})"

    @property
    def url(self) -> str:
        """Where the root is, without secrets."""
        return self.store.url

    @property
    def log(self) -> Log:
        """The root's history. Raises: NotARoot; FormatTooNew."""
        self._check()
        return self._log

    @property
    def state(self) -> State:
        """The history as it is now."""
        return self.log.state

    # reading

    def open(self, ref: str) -> Version:
        """The version that `name@number`, `name@latest`, `name@alias`, `name@tag`, `name` or `v-<hash>` names.

        Leaves a lease, so that a collector sees a reader; with read-only credentials there is none and one
        warning is logged. Raises: VersionNotFound; VersionRetired; NotARoot; FormatTooNew; Corrupt.
        """
        record = resolve(self.state, ref)
        if record.id not in self._leases:
            self._leases[record.id] = lease = Lease(self.store, record.id)
            lease.beat()
            # The lease is only safe once it is older than the retirement it must be seen by: read the log again.
            record = resolve(self.state, record.id)
        return open_record(self.store, record)

    def datasets(self) -> list[str]:
        """Names of the datasets that have a version, sorted."""
        return sorted(name for name, versions in self.state.datasets.items() if versions)

    def versions(self, dataset: str) -> list[VersionRecord]:
        """Every version of a dataset, oldest first. Raises: VersionNotFound."""
        found = list(self.state.versions(dataset))
        if not found:
            raise VersionNotFound(
                f"{self.url} has no dataset {dataset!r}; it has {', '.join(self.datasets()) or 'none'}"
            )
        return found

    def record(self, ref: str, *, retired: bool = False) -> VersionRecord:
        """What the log says of a version, without opening it."""
        return resolve(self.state, ref, retired=retired)

    # writing

    def write(
        self,
        dataset: str,
        *,
        group: str = "media",
        groups: Mapping[str, str] | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        part_samples: int | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> Writer:
        """A writer whose clean exit publishes the dataset's next version: what is there, and these samples.

        Samples are shuffled by the hash of their key and cut into parts of about `shard_bytes` or exactly
        `part_samples`. groups: field -> group, for fields that shall not lie in `group`.
        """
        return Writer(
            self,
            check_dataset_name(dataset),
            group=group,
            groups=groups,
            shard_bytes=shard_bytes,
            part_samples=part_samples,
            producer=producer,
        )

    def begin(self, dataset: str, parent: str | None = None, txn: str | None = None) -> str:
        """A transaction for the dataset's next version; its name is what `write_part` and `publish` need.

        parent: the ref that the work is based on (pinned; default: the newest). txn: a name of the caller's for a
        step that may be retried: beginning it again gives the same transaction. Raises: VersionRetired; Fenced.
        """
        self._create()
        state = self._log.state
        newest = state.newest(check_dataset_name(dataset))
        record = resolve(state, parent) if parent else newest
        if record is not None and record.dataset != dataset:
            raise Conflict(f"parent {record.name} is not a version of {dataset!r}")
        return self._log.begin(dataset, record.id if record else None, txn=txn).txn

    def abort(self, txn: str, reason: str) -> None:
        """Give a transaction up; nobody can commit it afterwards."""
        self.log.abort(txn, reason)

    def heartbeat(self, txn: str) -> Heartbeat:
        """A context manager that shows a collector that the transaction is alive."""
        return Heartbeat(self.store, txn)

    def publish(
        self,
        dataset: str,
        parts: Sequence[Part],
        parent: str | None = None,
        *,
        producer: Mapping[str, Any] | None = None,
    ) -> Version:
        """One version from parts that any number of workers wrote with one transaction.

        The parts are laid on the dataset's newest version, also when somebody published meanwhile; publishing a
        committed transaction again gives its version. parent: a ref that must exist and not be retired.
        producer: facts for the manifest (run id, code version). Raises: DuplicateKey; FieldMismatch; Fenced;
        Conflict; EmptyVersion.
        """
        txn = check_parts(parts)
        facts = check_producer(producer)
        state = self.log.state
        if parent is not None and resolve(state, parent).dataset != dataset:
            raise Conflict(f"parent {parent} is not a version of {dataset!r}")
        known = state.txns.get(txn)
        if known is not None and known.dataset != dataset:
            raise Conflict(f"these parts were begun for dataset {known.dataset!r}, not {dataset!r}")
        if known is not None and known.number is not None:
            return self.open(f"{dataset}@{known.number}")
        newest = state.newest(dataset)
        columns = open_record(self.store, newest).manifest["columns"] if newest else {}
        prefix = f"data/{txn}/{secrets.token_hex(8)}"
        earlier = {name: column["type"] for name, column in columns.items() if column["type"] != "null"}
        with self.heartbeat(txn):
            change, keys = write_run(self.store, prefix, parts, earlier)
            pending = Pending(dataset=dataset, txn=txn, prefix=prefix, change=change, producer=facts)
            return commit(self.store, self._log, pending, NewKeys(self.store, keys))

    def add_group(
        self,
        ref: str,
        group: str,
        compute: Mapping[str, Callable[[Mapping[str, Any]], Any]],
        *,
        inputs: Sequence[str] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> Version:
        """New fields for existing samples, in shards of their own: old shards are not touched.

        compute: field -> function of the sample (a mapping of its decoded fields, read when asked for). Parts
        that have the group already are left alone; with `inputs`, so are parts that lack one of these fields.
        Raises: Conflict when there is nothing to add or somebody added it meanwhile; FieldNotFound.
        """
        from .group_writer import write_group

        version = self.open(ref)
        facts = check_producer(producer)
        txn = self.begin(version.dataset, parent=version.id)
        try:
            with self.heartbeat(txn):
                parts = write_group(version, txn, group, compute, inputs)
                prefix = f"data/{txn}/{secrets.token_hex(8)}"
                change = write_group_run(self.store, prefix, parts)
                pending = Pending(
                    dataset=version.dataset, txn=txn, prefix=prefix, change=change, producer=facts
                )
                return commit(self.store, self._log, pending, FreeGroup(group, [part.id for part in parts]))
        except BaseException as error:
            self._abort_quietly(txn, error)
            raise

    def exclude(
        self, ref: str, keys: Sequence[str], *, reason: str, producer: Mapping[str, Any] | None = None
    ) -> Version:
        """The next version without these samples. Their bytes stay until a takedown; ordinals close up.

        Raises: VersionNotFound for a key that the version does not have; Conflict when somebody excluded one
        meanwhile.
        """
        from .exclude import StillLive, write_exclusions

        if not reason:
            raise InvalidSample("exclude needs a reason: it is what a reader of the manifest will see")
        version = self.open(ref)
        facts = check_producer(producer)
        txn = self.begin(version.dataset, parent=version.id)
        try:
            prefix = f"data/{txn}/{secrets.token_hex(8)}"
            change, rows = write_exclusions(version, prefix, keys, reason)
            pending = Pending(dataset=version.dataset, txn=txn, prefix=prefix, change=change, producer=facts)
            return commit(self.store, self._log, pending, StillLive(rows))
        except BaseException as error:
            self._abort_quietly(txn, error)
            raise

    def retire(self, ref: str, *, reason: str) -> None:
        """Take a version out of use: opening it raises VersionRetired with this reason. It cannot be undone."""
        record = resolve(self.state, ref, retired=True)
        self._log.retire(record.dataset, record.number, reason)

    def tag(self, ref: str, name: str) -> None:
        """A name that never moves. Raises: Conflict when it names another version; InvalidName."""
        self._ref(ref, name, "tag")

    def alias(self, ref: str, name: str) -> None:
        """A name that may move later. Raises: Conflict when somebody moved it meanwhile; InvalidName."""
        self._ref(ref, name, "alias")

    def close(self) -> None:
        """Give the leases back and release connections."""
        _release(self._leases)
        self.store.close()

    def __enter__(self) -> "Root":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def renew_leases(self) -> None:
        """Show a collector that the versions opened here are still being read."""
        for lease in list(self._leases.values()):
            lease.beat()

    def _ref(self, ref: str, name: str, kind: Any) -> None:
        state = self.state
        record = resolve(state, ref)
        old = state.refs.get((record.dataset, name))
        self._log.ref(record.dataset, name, kind, record.number, was=old.number if old else None)

    def _abort_quietly(self, txn: str, error: BaseException) -> None:
        try:
            self._log.abort(txn, f"{type(error).__name__}: the change was given up")
        except Exception as failure:  # noqa: BLE001 - the first error is the one to show
            logger.warning("transaction %s could not be aborted: %s", txn, failure)

    def _check(self) -> None:
        """Raises: NotARoot; FormatTooNew."""
        if self._known:
            return
        try:
            data = self.store.get(MARKER).data
        except ObjectNotFound:
            there = next(iter(self.store.list("")), None)
            what = f"it holds other things ({there.key} ...)" if there else "nothing is there"
            raise NotARoot(
                f"{self.url} is not a penstock root: it has no {MARKER}, {what}. Check the path; a root is made by "
                "the first root.write() into an empty place"
            ) from None
        check_marker(data, f"{self.url}/{MARKER}")
        self._known = True

    def _create(self) -> None:
        """Make the place a root if it is empty. Raises: NotARoot when it holds other things."""
        if self._known:
            return
        try:
            self._check()
        except NotARoot:
            if any(not there.key.startswith(_PROBES) for there in self.store.list("")):
                self._check()  # somebody else may have made it a root this moment
                return
            _prove_create_only(self.store)
            marker = {"format": FORMAT, "id": secrets.token_hex(16), "created_us": time.time_ns() // 1000}
            try:
                self.store.put_if_absent(MARKER, canonical(marker))
            except AlreadyExists:
                logger.debug("another process created the root %s", self.url)
            self._check()


def check_marker(data: bytes, name: str) -> None:
    """Raises: NotARoot; FormatTooNew."""
    try:
        found = json.loads(data)["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise NotARoot(f"{name} is not a root's marker: {error}") from error
    if found > FORMAT:
        raise FormatTooNew(
            f"{name} says format {found}; this penstock reads up to {FORMAT}. Upgrade: pip install -U penstock"
        )


def _prove_create_only(store: Store) -> None:
    """Some servers accept a second create of one key and would lose history: refuse to write there.

    Raises: InvalidStore.
    """
    key = f"{_PROBES}{secrets.token_hex(8)}"
    store.put_if_absent(key, b"first")
    try:
        store.put_if_absent(key, b"second")
    except AlreadyExists:
        return
    finally:
        store.delete_many([key])
    raise InvalidStore(
        f"{store.url} let a create-only write replace an object; versions published there could be lost. Use a "
        "store with conditional creates (S3, GCS, Azure, Ceph, a POSIX disk)"
    )


def _rebuild(store: Store) -> Root:
    root = Root.__new__(Root)
    root.store = store
    root._log = Log(store)
    root._known = False
    root._leases = {}
    weakref.finalize(root, _release, root._leases)
    return root


def _release(leases: dict[str, Lease]) -> None:
    """Give leases back. One that cannot be given back stops moving, which a collector sees."""
    while leases:
        leases.popitem()[1].close()
