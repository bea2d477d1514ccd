"""Find the stored sequences of documents that a takedown denies: they are denied as samples of their own dataset."""

from collections.abc import Iterator
from typing import Any

from loader import Root
from loader.dataset.apply_denies import find_denied_in_tables
from loader.dataset.log.denies import DenyList, Target
from loader.dataset.log.state import Deny

from ..denied.keys_tables import keys_files, names_in
from ..denied.readable_versions import Whole, over_whole
from .members import SequenceMembers, stored_members, unpublished_members


def undenied_sequences(root: Root, deny: Deny) -> list[Target]:
    """Return the sequences that have a document which `deny` denies, and which no takedown denies.

    Reads the members of all stored sequences, and the keys of their documents' datasets.
    """
    documents: dict[str, _DeniedDocuments] = {}
    takedowns: dict[str, DenyList] = {}
    targets: dict[tuple[str, str], Target] = {}
    for dataset, sequence in _all_sequences(root):
        if sequence.dataset not in documents:
            documents[sequence.dataset] = _DeniedDocuments(root, sequence.dataset, deny)
        if not documents[sequence.dataset].has_any(sequence):
            continue
        if dataset not in takedowns:
            takedowns[dataset] = DenyList(root.state.denies, dataset)
        is_denied = takedowns[dataset].denying_entry("sample", sequence.key)
        if not is_denied:
            target = Target(
                kind="sample",
                value=sequence.key,
                dataset=dataset,
            )
            targets[dataset, sequence.key] = target
    return [targets[name] for name in sorted(targets)]


def _all_sequences(root: Root) -> Iterator[tuple[str, SequenceMembers]]:
    """Yield (dataset, sequence) of published and of waiting sequences."""
    state = root.state
    for dataset in sorted(state.datasets):
        for sequence in stored_members(root, dataset):
            yield dataset, sequence
    # A killed command's parts wait for its repetition, or for the collector.
    for name in sorted(state.txns):
        txn = state.txns[name]
        if txn.status != "open":
            continue
        for sequence in unpublished_members(root.store, name):
            yield txn.dataset, sequence


class _DeniedDocuments:
    """The documents of a dataset that a takedown denies."""

    def __init__(
        self,
        root: Root,
        dataset: str,
        deny: Deny,
    ) -> None:
        def read_keys(versions: Whole) -> frozenset[str]:
            return _denied_keys(root, dataset, deny, versions)

        self._keys = over_whole(root, dataset, read_keys)
        self._takedown = DenyList([deny], dataset)

    def has_any(self, sequence: SequenceMembers) -> bool:
        """Return whether one of the sequence's documents is denied."""
        if not self._keys.isdisjoint(sequence.documents):
            return True
        # A takedown may name a key that no version has any more.
        entries = [self._takedown.denying_entry("sample", key) for key in sequence.documents]
        return any(entries)


def _denied_keys(
    root: Root,
    dataset: str,
    deny: Deny,
    versions: Whole,
) -> frozenset[str]:
    """Return the keys of the samples that a takedown denies in these versions."""
    files: dict[str, dict[str, Any]] = {}
    for _, version in versions:
        for file in keys_files(version):
            files[file["path"]] = file
    keys: set[str] = set()
    # Versions share tables: each is read once.
    for file in files.values():
        rows = find_denied_in_tables(
            root.store,
            [deny],
            dataset,
            [file],
        )
        if not rows:
            continue
        names = names_in(root.store, file)
        for sample in names.select(["part", "row", "key"]).to_pylist():
            part_rows = rows.get(sample["part"], {})
            if sample["row"] in part_rows:
                keys.add(sample["key"])
    return frozenset(keys)
