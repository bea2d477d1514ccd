"""Find the stored sequences of documents that takedowns deny: they are denied as samples of their own dataset."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loader import Root, Version
from loader.dataset.log.denies import COMPARED_COLUMNS, DenyList, Target
from loader.dataset.log.state import Deny, State
from loader.dataset.publishing.apply_denies import find_denied_in_tables

from ..denied.keys_tables import keys_files, read_names
from ..denied.readable_versions import WholeVersions, read_whole_versions
from .members import MEMBERS, SequenceMembers, transaction_members, version_members

VALUES_KEPT = 2**20
"""Most values of sources whose entry is kept: 200 MiB."""


def pending_sequences(root: Root, denies: Sequence[Deny]) -> dict[int, list[Target]]:
    """Return number of a takedown -> the sequences that have a document which it denies, and that no takedown denies.

    denies: takedowns of documents. A sequence is listed for one of them. Reads the members of all stored sequences,
    once, and the keys of their documents' datasets.
    """
    documents: dict[str, _DeniedDocuments] = {}
    takedowns: dict[str, DenyList] = {}
    targets: dict[int, dict[tuple[str, str], Target]] = {}
    for dataset, sequence in _all_sequences(root):
        if sequence.dataset not in documents:
            documents[sequence.dataset] = _DeniedDocuments(root, sequence.dataset, denies)
        entry = documents[sequence.dataset].denying_entry(sequence)
        if not entry:
            continue
        if dataset not in takedowns:
            takedowns[dataset] = DenyList(root.state.denies, dataset)
        is_denied = takedowns[dataset].denying_entry("sample", sequence.key)
        if not is_denied:
            key = sequence.key
            target = Target(
                kind="sample",
                value=key,
                dataset=dataset,
            )
            entry_targets = targets.setdefault(entry, {})
            entry_targets[dataset, key] = target
    lists: dict[int, list[Target]] = {}
    for entry, entry_targets in targets.items():
        by_name = sorted(entry_targets.items())
        lists[entry] = [target for _, target in by_name]
    return lists


def _all_sequences(root: Root) -> Iterator[tuple[str, SequenceMembers]]:
    """Yield (dataset, sequence) of published and of waiting sequences."""
    state = root.state
    datasets = {txn.dataset for txn in state.txns.values()}
    datasets.update(state.datasets)
    may_have_sequences: dict[str, bool] = {}
    for dataset in sorted(datasets):
        may_have_sequences[dataset] = _may_have_sequences(root, state, dataset)
        if not may_have_sequences[dataset]:
            continue
        for sequence in version_members(root, dataset):
            yield dataset, sequence
    # A killed command's parts wait for its repetition, or for the collector.
    for name in sorted(state.txns):
        txn = state.txns[name]
        if txn.status != "open" or not may_have_sequences[txn.dataset]:
            continue
        for sequence in transaction_members(root.store, name):
            yield txn.dataset, sequence


def _may_have_sequences(
    root: Root,
    state: State,
    dataset: str,
) -> bool:
    """Return whether the newest version has members, or there is none. Costs a request, not one per version."""
    newest = state.newest(dataset)
    if newest is None:
        return True
    version = Version.of_record(root.store, newest)
    return MEMBERS in version.fields


class _DeniedDocuments:
    """The documents of a dataset that takedowns deny."""

    def __init__(
        self,
        root: Root,
        dataset: str,
        denies: Sequence[Deny],
    ) -> None:
        def read_keys(versions: WholeVersions) -> dict[str, int]:
            return _read_denied_keys(root, dataset, denies, versions)

        self._entries: Mapping[str, int] = read_whole_versions(root, dataset, read_keys)
        self._takedowns = DenyList(denies, dataset)
        self._entries_of_values: dict[tuple[str, str], int] = {}

    def denying_entry(self, sequence: SequenceMembers) -> int:
        """Return the number of a takedown that denies one of the sequence's documents, 0 if there is none."""
        for key in sequence.documents:
            entry = self._entries.get(key, 0)
            # A takedown may name a key that no version has any more.
            entry = entry or self._takedowns.denying_entry("sample", key)
            if entry:
                return entry
        # No version may have the documents any more: the sequence keeps what names them.
        for kind, columns in COMPARED_COLUMNS.items():
            for column in columns:
                values = sequence.sources.get(column, frozenset())
                for value in values:
                    entry = self._denying_entry(kind, value)
                    if entry:
                        return entry
        return 0

    def _denying_entry(self, kind: str, value: str) -> int:
        # Thousands of documents share a raw object or a subject, and a hash costs more than a look-up.
        source = (kind, value)
        entry = self._entries_of_values.get(source)
        if entry is not None:
            return entry
        entry = self._takedowns.denying_entry(
            kind,
            value,
        )
        is_kept = len(self._entries_of_values) < VALUES_KEPT
        if is_kept:
            self._entries_of_values[source] = entry
        return entry


def _read_denied_keys(
    root: Root,
    dataset: str,
    denies: Sequence[Deny],
    versions: WholeVersions,
) -> dict[str, int]:
    """Return key -> number of the takedown that denies it, for the samples of these versions."""
    files: dict[str, dict[str, Any]] = {}
    for _, version in versions:
        for file in keys_files(version):
            files[file["path"]] = file
    entries: dict[str, int] = {}
    # Versions share tables: each is read once.
    for file in files.values():
        rows = find_denied_in_tables(
            root.store,
            denies,
            dataset,
            [file],
        )
        if not rows:
            continue
        names = read_names(root.store, file)
        for sample in names.select(["part", "row", "key"]).to_pylist():
            part_rows = rows.get(sample["part"], {})
            if sample["row"] in part_rows:
                key = sample["key"]
                row = sample["row"]
                entries[key] = part_rows[row]
    return entries
