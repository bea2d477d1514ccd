"""Store the sequences of `loader.pack` as a dataset, once.

A repeated command goes on where a killed one stopped. For a newer version of the documents it adds the sequences with
new content, and excludes sequences that the new table lacks. Packing works in blocks of 2^14 documents, so appended
documents change only the last block.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from loader import Root, Version, View
from loader.dataset.names import check_dataset_name
from loader.dataset.publishing.apply_denies import DenyEntries, find_parent_denied
from loader.dataset.publishing.publish import abort_failed, publish_registered, publish_without
from loader.dataset.shards.part import Part
from loader.dataset.shards.shard import DEFAULT_SHARD_BYTES
from loader.dataset.writing.exclude import RowsToExclude
from loader.dataset.writing.part_writer import group_chooser
from loader.errors import Conflict, Denied, InvalidPlan, PenstockError, StoreError
from loader.order.random.keyed_permutation import I64
from loader.order.sources.packing import STARTS, PackBy, PackedView
from loader.storage.disk.unlisted_files import delete_in_place, list_in_place
from loader.storage.threads import DaemonPool

from ..exclusion_records import standing_exclusions
from ..formats.importing.write_parts import PartLayout, WrittenParts, write_parts
from ..formats.registration.register import transaction
from ..progress import progress
from ..threads import check_workers
from .members import GROUP, MEMBERS
from .report import PackReport
from .sequences import Sequences
from .stored_keys import REPLACED, StoredKeys

FACT = "packed"
"""Fact of the token field: the request that made the dataset."""
FOLDER = "packed"
SEQUENCES_GROUP = "sequences"


def pack_documents(
    root: Root,
    ref: str,
    dataset: str,
    request: PackBy,
    *,
    workers: int = 4,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> PackReport:
    """Publish a version with the packed sequences of a version's documents.

    workers: threads, each of which writes its own part. shard_bytes: bytes of tokens at which a part is full.

    Raises: InvalidPlan, as `loader.pack`; Conflict if `dataset` was not packed by this request, or changed meanwhile;
    Denied if a takedown arrived meanwhile, or leaves no sequence; Corrupt; StoreError.
    """
    check_workers(workers)
    check_dataset_name(dataset)
    _check_names(request)
    documents = root.open(ref)
    if documents.dataset == dataset:
        message = f"the documents are in {dataset!r}; name another dataset for their sequences"
        raise Conflict(message, what="dataset", given=dataset, accepted="another dataset")
    view = documents.select(*request.fields)
    packed = view.packed(request)
    parent = _parent(root, dataset)
    facts = _request_facts(documents, request, packed)
    _check_request(parent, documents, request, facts)
    work = _Packing(root, view, packed, parent, facts, dataset)
    return work.publish(workers, shard_bytes)


def _check_names(request: PackBy) -> None:
    """Raise InvalidPlan for fields that stored sequences cannot have."""
    for name in request.fields:
        if name in (STARTS, MEMBERS):
            raise InvalidPlan(f"pack: {name!r} is a field of every stored sequence; name another field")
    if request.ragged or request.columns:
        message = "stored sequences have no columns and no ragged fields of documents; leave them out"
        raise InvalidPlan(message, what="columns and ragged fields", accepted="none")


def _parent(root: Root, dataset: str) -> Version | None:
    """Return the newest version of the sequences' dataset; None if it has none."""
    newest = root.state.newest(dataset)
    if newest is None:
        return None
    return root.open(newest.id)


def _request_facts(
    documents: Version,
    request: PackBy,
    packed: PackedView,
) -> dict[str, dict[str, Any]]:
    """Return the facts of the sequences' fields: the documents' facts, and the request."""
    facts: dict[str, dict[str, Any]] = {}
    for field in request.fields:
        known = documents.facts.get(field, {})
        facts[field] = dict(known)
    body = packed.packing.to_json()
    if "beside" in body:
        # Their order in the request changes no sequence.
        body["beside"].sort(key=lambda entry: entry["field"])
    facts[request.field][FACT] = {
        **body,
        **request.rule,
        "documents": documents.dataset,
        "lengths": request.lengths,
    }
    return facts


def _check_request(
    parent: Version | None,
    documents: Version,
    request: PackBy,
    facts: Mapping[str, Mapping[str, Any]],
) -> None:
    """Raise Conflict unless the dataset's sequences were packed by the same request."""
    if parent is None:
        return
    # The fact stands in every later version, also in one that an exclusion or a takedown published.
    field_facts = parent.facts.get(request.field, {})
    earlier = field_facts.get(FACT)
    if earlier is None:
        message = f"{parent.name} was not packed from {request.field!r}; choose another name"
        raise Conflict(message, what="field", where=parent.name, given=request.field)
    asked = facts[request.field][FACT]
    for name in sorted(earlier.keys() | asked.keys()):
        if earlier.get(name) != asked.get(name):
            raise Conflict(
                f"{parent.name} was packed with {name} = {earlier.get(name)!r}, not {asked.get(name)!r}; repeat its "
                "arguments, or choose another name",
                what=name,
                where=parent.name,
                given=asked.get(name),
                accepted=earlier.get(name),
            )


class _Packing:
    """One run of `pack_documents`."""

    def __init__(
        self,
        root: Root,
        view: View,
        packed: PackedView,
        parent: Version | None,
        facts: Mapping[str, Mapping[str, Any]],
        dataset: str,
    ) -> None:
        self._root = root
        self._documents = view.version
        self._packed = packed
        self._sequences = Sequences(packed, view)
        self._parent = parent
        self._facts = facts
        self._dataset = dataset
        self._skipped_parts = 0

    def publish(self, workers: int, shard_bytes: int) -> PackReport:
        """Publish the sequences that the dataset lacks, and exclude the ones that the table lacks.

        Returns the newest version if nothing changes.
        """
        denied = find_parent_denied(self._documents, self._root.state.denies)
        table = self._sequences.keys(denied)
        is_allowed = table.denying_entries == 0  # bool [sequences]
        allowed = {table.keys[number]: number for number in np.flatnonzero(is_allowed).tolist()}
        if not allowed:
            raise self._nothing_left(len(table.keys))
        stored = StoredKeys(self._parent)
        missing = allowed.keys() - stored.keys
        numbers = np.array(sorted(allowed[key] for key in missing), np.int64)
        reason = f"{REPLACED}{self._documents.name} has another table"
        to_exclude = stored.find_others(allowed, reason)
        version = self._parent
        if len(numbers):
            keys = [table.keys[number] for number in numbers.tolist()]
            version = self._write(numbers, keys, to_exclude, denied, workers, shard_bytes)
        elif self._parent is not None and to_exclude.n_samples:
            version = publish_without(self._root, self._parent, to_exclude, self._producer())
        assert version is not None  # without a parent, every allowed sequence is new
        return PackReport(
            name=version.name,
            id=version.id,
            documents=self._documents.name,
            sequences=len(version),
            added=len(numbers),
            excluded=to_exclude.n_samples,
            denied=int((~is_allowed).sum()),
            filled=self._packed.efficiency,
            skipped_parts=self._skipped_parts,
        )

    def _write(
        self,
        numbers: I64,
        keys: list[str],
        to_exclude: RowsToExclude,
        denied: DenyEntries,
        workers: int,
        shard_bytes: int,
    ) -> Version:
        """Publish these sequences. numbers: int64 [n], of the table."""
        # A takedown changes the keys: a repeated command then uses no part of the killed one.
        digest = hashlib.sha256("\n".join(keys).encode())
        chosen = {"packed": dict(self._facts), "sequences": digest.hexdigest(), "shard_bytes": shard_bytes}
        txn = transaction(self._root, self._dataset, self._documents.id, chosen, self._parent)
        layout = PartLayout(
            store=self._root.store,
            txn=txn,
            group_of=group_chooser(SEQUENCES_GROUP, {MEMBERS: GROUP}),
            shard_bytes=2**62,  # a unit is one part
            folder=FOLDER,
        )
        units = list(_units(numbers, keys, self._packed.mean_sample_bytes, shard_bytes))
        try:
            with self._root.heartbeat(txn):
                parts = self._parts(units, layout, workers)
                return publish_registered(
                    self._root,
                    self._dataset,
                    txn,
                    f"data/{txn}/{FOLDER}",
                    parts,
                    samples=None,
                    objects=None,
                    parent=self._parent,
                    to_exclude=to_exclude,
                    producer=self._producer(),
                    # Not the time: a repeated command gives the same version.
                    created_us=self._documents.manifest["created_us"],
                    field_facts=self._facts,
                    exclusions=standing_exclusions(self._root.store, self._dataset),
                    more_checks=[self._check_denies(denied)],
                )
        except Denied as error:
            abort_failed(self._root, txn, error)
            _delete_files(self._root, txn)  # its parts have the denied document
            raise

    def _parts(
        self,
        units: Sequence["_Unit"],
        layout: PartLayout,
        workers: int,
    ) -> list[Part]:
        """Write each unit as a part, unless a killed command has; return the parts in order."""
        pool = DaemonPool(workers, "penstock-pack")

        def write(unit: "_Unit") -> WrittenParts:
            return write_parts(self._sequences.samples(unit.numbers, unit.keys), layout, unit.name)

        try:
            futures = [pool.submit(write, unit) for unit in units]
            parts: list[Part] = []
            for future in progress(futures, "pack"):
                written = future.result()
                parts += written.parts
                self._skipped_parts += written.skipped
            return parts
        finally:
            pool.dismiss()

    def _producer(self) -> dict[str, Any]:
        return {"packed": self._documents.id, "table": self._packed.table_sha256}

    def _check_denies(self, denied: DenyEntries) -> "_NoNewDenies":
        return _NoNewDenies(self._root, self._documents, denied, self._packed, self._sequences)

    def _nothing_left(self, n_sequences: int) -> PenstockError:
        """Return the error if no sequence may be published. n_sequences: of the table, denied ones too."""
        if n_sequences:
            return Denied(
                f"takedowns deny documents in all {n_sequences} sequences of {self._documents.name}; run them, and "
                "pack the version that they publish",
                what="sequences",
                where=self._documents.name,
                given=n_sequences,
            )
        message = f"pack: the documents of {self._documents.name} have no tokens"
        return InvalidPlan(message, what="tokens", where=self._documents.name, given=0)


def _delete_files(root: Root, txn: str) -> None:
    """Delete a transaction's files. The collector deletes what the store refuses to delete."""
    folder = f"data/{txn}/"
    keys = [info.key for info, is_link in list_in_place(root.store, folder, folder) if not is_link]
    with suppress(StoreError):
        delete_in_place(root.store, keys, folder)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Unit:
    """Sequences that become one part."""

    name: str
    numbers: I64
    keys: list[str]


def _units(
    numbers: I64,
    keys: list[str],
    sequence_bytes: int,
    shard_bytes: int,
) -> Iterator[_Unit]:
    """Yield the sequences in units of about `shard_bytes`. sequence_bytes: of one sequence, on average."""
    n_together = max(1, shard_bytes // max(1, sequence_bytes))
    for index, first in enumerate(range(0, len(numbers), n_together)):
        block = slice(first, first + n_together)
        yield _Unit(name=f"{index:05d}", numbers=numbers[block], keys=keys[block])


class _NoNewDenies:
    """Checks at each try of the commit that no takedown arrived since the sequences were chosen.

    known: rows of the documents that takedowns denied then.
    """

    def __init__(
        self,
        root: Root,
        documents: Version,
        known: DenyEntries,
        packed: PackedView,
        sequences: Sequences,
    ) -> None:
        self._root = root
        self._documents = documents
        self._known = known
        self._packed = packed
        self._sequences = sequences

    def __call__(self, newest: Version | None) -> None:
        """Raise Denied if a takedown that arrived since denies one of the documents.

        newest: as each check of a commit receives it. Takedowns are in the root's state, whatever it is.
        """
        denied = find_parent_denied(self._documents, self._root.state.denies)
        if denied == self._known:
            return
        now = self._sequences.keys(denied)
        before = self._sequences.keys(self._known)
        # A sequence that was left out already may have one more denied document.
        is_new = (now.denying_entries != 0) & (before.denying_entries == 0)  # bool [sequences]
        if not is_new.any():
            return
        number = int(np.flatnonzero(is_new)[0])
        raise Denied(
            f"takedown {now.denying_entries[number]} arrived meanwhile: it denies a document of sequence "
            f"{now.keys[number]!r} of {self._documents.name}, and nothing was published. Run the command again: it "
            f"leaves such sequences out ({int(is_new.sum())} so far)",
            what="takedown",
            where=f"{self._documents.name} sequence {now.keys[number]!r}",
            given=int(now.denying_entries[number]),
        )
