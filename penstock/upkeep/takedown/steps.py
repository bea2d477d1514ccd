"""The steps of a takedown in one dataset."""

from collections.abc import Mapping, Sequence
from typing import Any

from loader.dataset.log.rules import Done, decide_retire
from loader.dataset.log.state import State, VersionRecord
from loader.dataset.versions.version import open_record

from ...denied.denied_bytes import DeniedBytes
from ...denied.find import Found, find
from ...denied.keys_tables import KeysTables
from ...denied.readable_versions import Whole, over_whole
from ...denied.record import Place, add_to_record, read_record
from .derived import derived_edits, page_edits
from .excluded import exclusion_edits
from .orphans import left_over, part_samples
from .outcome import Ran
from .pipeline_tables import lifecycle_edits
from .recorded_edits import Edits, do
from .rewrite import NothingLeft, publish_redacted, zeroed


class Steps:
    """The steps in one dataset.

    tables: reads the tables of keys, once more when versions were published.
    found: what its versions have of the takedown.
    ran: receives the results.
    """

    def __init__(self, tables: KeysTables, found: Found, ran: Ran) -> None:
        self._root, self._deny, self._tables = tables.root, tables.deny, tables
        self._found, self._ran = found, ran
        self._dataset, self._marks = found.dataset, found.marks
        self._uris = set(found.uris)

    def take(self) -> set[str]:
        """Take all steps, in this order. Returns the URIs of the raw objects that these samples were cut of.

        Each finds what is left to do in what is stored: killed anywhere, a run is run again. Raises: Corrupt;
        StoreError; Fenced.
        """
        self._note_found()
        retired = False
        while not retired:
            nothing_left_of = self._publish()
            self._find_again()
            self._note_found()
            self._delete_pages()
            retired = self._retire(nothing_left_of)
        self._edit_derived()
        left = DeniedBytes(self._root.store, self._root.state.denies)
        self._do(Edits(deletes=tuple(left.left_by_adoption(self._root, self._dataset))))
        self._do(exclusion_edits(self._root.store, self._dataset, self._marks))
        self._note_left_over()
        self._edit_lifecycle()
        return self._uris

    def _note_found(self) -> None:
        """Put the findings on record before they change, with the bytes of the newest version that must be zeros."""
        own = self._marks.hashes
        places = [*self._found.places, *self._zeros()]
        add_to_record(self._root.store, self._deny.n, places, {self._dataset: own} if own else {})

    def _publish(self) -> str:
        """Publish the newest version without the samples, until it has none of them.

        Returns its id where it has no others, so that there is no version without them; else "".
        """
        try:
            while record := publish_redacted(self._root, self._dataset, self._deny, self._marks):
                self._ran.new.append(record.name)
        except NothingLeft as left:
            return left.version
        return ""

    def _find_again(self) -> None:
        """Find again, so that what others published meanwhile is found too."""
        self._found = find(self._tables, self._dataset, self._marks.hashes)
        self._marks = self._found.marks.adding(self._marks.plain)
        self._uris |= self._found.uris

    def _delete_pages(self) -> None:
        """Delete every page of the gate, which may show a sample, while a version that has or names samples is there.

        They go before that version is retired, so that a run which is killed does it again. A later run leaves the
        pages that were made since.
        """
        if any(record.retired is None for record in self._found.versions):
            self._do(page_edits(self._root.store, self._dataset, self._marks, everything=True))

    def _retire(self, nothing_left_of: str) -> bool:
        """Retire the versions that had the samples.

        Returns false if a version was published on one of them since. The newest version is never retired while it
        has other samples, before there is a version of these.
        """
        had = {record.id for record in self._found.versions}

        def retire_next(state: State) -> Mapping[str, object] | Done[object]:
            left = [one for one in state.versions(self._dataset) if one.id in had and one.retired is None]
            newest = state.newest(self._dataset)
            if not left or newest is None:
                return Done(True)
            # Asked of the log that the entry is appended to. A version published on one of which nothing is left
            # has the samples too, excluded and not redacted: it is to be found and published without them first.
            moved_on = newest.id != nothing_left_of if nothing_left_of else newest.id in had
            if moved_on:
                return Done(False)
            return decide_retire(state, self._dataset, left[0].number, f"takedown (log entry {self._deny.n})")

        while (outcome := self._root.log.append(retire_next)).entry is not None:
            self._ran.retired.append(f"{self._dataset}@{outcome.entry.body['number']}")
        return outcome.value is True

    def _edit_derived(self) -> None:
        """Edit the objects that were made of the versions that had them."""
        self._do(derived_edits(self._root.store, self._had(), self._marks))

    def _note_left_over(self) -> None:
        """Put the leftovers on record, so that a proof looks whether a collector has them."""
        add_to_record(self._root.store, self._deny.n, left_over(self._root, self._dataset, self._marks))

    def _edit_lifecycle(self) -> None:
        """Edit the pages of the gate, then the pipeline's files, which tell whether a page may show a sample."""
        store, rows = self._root.store, self._found.rows
        instead = self._replaced() | part_samples(self._root, self._dataset, rows, self._marks)
        lifecycle = lifecycle_edits(store, self._dataset, self._marks, instead)
        self._do(
            page_edits(
                store, self._dataset, self._marks, everything=bool(lifecycle.puts or lifecycle.deletes)
            )
        )
        self._do(lifecycle)

    def _do(self, edits: Edits) -> None:
        self._ran.touched += do(self._root.store, self._deny.n, self._dataset, edits)

    def _had(self) -> list[VersionRecord]:
        """Return the versions that had them, by what is on record: of some nothing may be left."""
        ids = read_record(self._root.store, self._deny.n).versions()
        return [record for record in self._root.state.versions(self._dataset) if record.id in ids]

    def _zeros(self) -> Sequence[Place]:
        newest = self._root.state.newest(self._dataset)
        rows, had = self._found.rows, {record.id for record in self._found.versions}
        if newest is None or not rows or newest.id in had:
            return []
        return zeroed(open_record(self._root.store, newest), rows)

    def _replaced(self) -> dict[str, dict[str, Any]]:
        """Return path of a shard with denied samples -> row of the newest version's shard in its place."""
        newest, rows = self._root.state.newest(self._dataset), self._found.rows
        if newest is None or not rows:
            return {}
        version = open_record(self._root.store, newest)
        now = {
            (shard["part"], shard["group"]): shard
            for shard in version.parts.shard_rows().to_pylist()
            if shard["part"] in rows
        }

        def replaced(versions: Whole) -> dict[str, dict[str, Any]]:
            old: dict[str, dict[str, Any]] = {}
            for _, earlier in versions:
                for shard in earlier.parts.shard_rows().to_pylist():
                    new = now.get((shard["part"], shard["group"]))
                    if new is not None and new["path"] != shard["path"]:
                        old[shard["path"]] = new
            return old

        return over_whole(self._root, self._dataset, replaced)
