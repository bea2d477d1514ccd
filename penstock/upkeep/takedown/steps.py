"""The steps of a takedown in one dataset, and the report of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from loader.dataset.log.rules import Done, decide_retire
from loader.dataset.log.state import State, VersionRecord
from loader.dataset.versions.version import Version

from ...denied.denied_bytes import DeniedBytes
from ...denied.find import Findings, find
from ...denied.keys_tables import KeysTables
from ...denied.readable_versions import WholeVersions, read_whole_versions
from ...denied.record import Place, add_to_record, read_record
from ...text import lines_text
from .band_edits import band_edits
from .derived import Edits, apply_edits, edit_derived, exclusion_edits, page_edits
from .pipeline_files import lifecycle_edits
from .rewrite import NothingLeft, not_removed, publish_redacted, zeroed_ranges
from .scan import find_leftovers, part_samples
from .segment_edits import index_again, segment_edits
from .slice_edits import slice_edits


@dataclass(slots=True)
class TakedownReport:
    n: int
    """Number of the takedown's log entry."""
    applied: bool
    """False for a dry run."""
    samples: dict[str, int] = field(default_factory=dict)
    """Dataset -> number of denied samples."""
    new: list[str] = field(default_factory=list)
    """Names of published versions."""
    retired: list[str] = field(default_factory=list)
    """Names of retired versions."""
    touched: list[str] = field(default_factory=list)
    """Paths of rewritten or deleted objects."""
    newer: list[str] = field(default_factory=list)
    """Paths of training runs' objects that name a newer release: they were not searched."""
    named: list[str] = field(default_factory=list)
    """Paths of training runs' objects that name the samples and are never rewritten, such as a profile."""
    uris: list[str] = field(default_factory=list)
    """URIs of raw objects that only these samples need."""
    deleted: list[str] = field(default_factory=list)
    """Raw objects among `uris` that were deleted, by this run or an earlier one."""
    shared: list[str] = field(default_factory=list)
    """URIs of raw objects that stay, because something else needs them."""
    refused: dict[str, str] = field(default_factory=dict)
    """URI of a raw object that was not deleted -> reason."""
    adopted: list[str] = field(default_factory=list)
    """Paths of adopted objects that hold samples denied by any takedown."""
    trained: list[dict[str, Any]] = field(default_factory=list)
    """Runs that trained on the samples: run, dataset, samples, steps, checkpoints, error."""
    waiting: int = 0
    """Objects that wait for garbage collection."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """Return readable text."""
        n = sum(self.samples.values())
        lines = [
            f"takedown {self.n}: {n} samples" + "".join(f", {k} in {d}" for d, k in self.samples.items())
        ]
        if not self.applied:
            any_found = n or self.adopted
            lines.append(
                "  nothing was changed: --apply does it" if any_found else "  nothing to do in any version"
            )
        lines += [f"  adopted object that holds denied samples: {path}" for path in self.adopted]
        lines += [f"  published {name}" for name in self.new] + [f"  retired {name}" for name in self.retired]
        for run in self.trained:
            of = f"{run['run']} on {run['of']}"
            if run["error"]:
                lines.append(f"  a run that may have trained on them: {of} ({run['error']})")
                continue
            saved = ", ".join(map(str, run["checkpoints"])) or "none"
            lines.append(
                f"  a run that trained on {run['samples']} of them: {of}, steps {run['first_step']} to "
                f"{run['last_step']}; checkpoints that include them: {saved}"
            )
        if self.touched:
            lines.append(f"  rewrote or deleted {len(self.touched)} objects of no version")
        for path in sorted(self.newer):
            lines.append(
                f"  not searched, of a newer release by its own word: {path}; upgrade penstock, or delete it"
            )
        lines += [f"  names the samples, and is never rewritten: {path}; delete it" for path in self.named]
        if self.waiting:
            lines.append(f"  {self.waiting} objects wait for a collector: penstock gc sweep")
        deleted = set(self.deleted)
        for uri in self.uris:
            state = "left at its source"
            if uri in self.refused:
                state = f"left at its source ({self.refused[uri]})"
            lines.append(f"  raw object, {'deleted at its source' if uri in deleted else state}: {uri}")
        lines += [f"  raw object that others need too, left at its source: {uri}" for uri in self.shared]
        return lines_text(lines)


class Steps:
    """Performs a takedown's steps in one dataset.

    tables: reader for keys tables. findings: denied samples in its versions. report: receives the results.
    """

    def __init__(self, tables: KeysTables, findings: Findings, report: TakedownReport) -> None:
        self._root = tables.root
        self._deny = tables.deny
        self._tables = tables
        self._findings = findings
        self._report = report
        self.dataset = findings.dataset
        self.marks = findings.marks
        self._uris = set(findings.uris)

    def take(self) -> set[str]:
        """Take all steps in order; return the URIs of the samples' raw objects.

        If others publish a version with the samples meanwhile, that is rewritten too. Raises: Denied if a rewrite
        changes nothing; Corrupt; StoreError; Fenced.
        """
        # Before the first change: after a kill, a proof must still check what was found.
        self._note_found()
        last: VersionRecord | None = None
        while True:
            nothing_left_of = self._publish()
            self._find_again()
            self._note_found()
            self._delete_pages()
            newest = self._retire(nothing_left_of)
            if newest is None:
                break
            if last is not None and newest.id == last.id:
                raise not_removed(self._root, newest, self._deny, self._where())
            last = newest
        self._edit_derived()
        adoptions = DeniedBytes(self._root.store, self._root.state.denies)
        self._do(Edits(deletes=tuple(adoptions.orphan_copies(self._root, self.dataset))))
        self._do(exclusion_edits(self._root.store, self.dataset, self.marks))
        self._do(slice_edits(self._root.store, self.dataset, self.marks))
        self._do(segment_edits(self._root, read_record(self._root.store, self._deny.n)))
        self._do(band_edits(self._root.store, self.dataset, read_record(self._root.store, self._deny.n)))
        self._note_leftovers()
        self._edit_lifecycle()
        # Last: an index is of the new version, and may fail without harm.
        index_again(self._root, self.dataset, read_record(self._root.store, self._deny.n))
        return self._uris

    def _note_found(self) -> None:
        own = self.marks.denied_marks
        hashes = {}
        if own:
            hashes[self.dataset] = own
        places = [*self._findings.places, *self._zeros()]
        add_to_record(self._root.store, self._deny.n, places, hashes)

    def _publish(self) -> str:
        record = None
        try:
            while record := publish_redacted(self._root, self.dataset, self._deny, self.marks, record):
                self._report.new.append(record.name)
        except NothingLeft as left:
            return left.version
        return ""

    def _find_again(self) -> None:
        self._findings = find(self._tables, self.dataset, self.marks.denied_marks)
        self.marks = self._findings.marks.adding(self.marks.plain)
        self._uris |= self._findings.uris

    def _delete_pages(self) -> None:
        # A page may show a sample while a version with the samples is not retired
        # Before that version is retired, so that after a kill the next run still deletes them. A run after the
        # retirement keeps newer pages.
        if any(record.retired is None for record in self._findings.versions):
            self._do(page_edits(self._root.store, self.dataset, self.marks, everything=True))

    def _where(self) -> str:
        rows = self._findings.rows
        if rows:
            return f"in parts {', '.join(sorted(rows)[:3])}"
        return "as names"

    def _retire(self, nothing_left_of: str) -> VersionRecord | None:
        """Retire the versions that had the samples; return a version based on one of them that was published since."""
        # The newest version is not retired until its other samples are in a version without the denied ones.
        had = {record.id for record in self._findings.versions}

        def retire_next(state: State) -> Mapping[str, object] | Done[object]:
            unretired = [one for one in state.versions(self.dataset) if one.id in had and one.retired is None]
            newest = state.newest(self.dataset)
            if not unretired or newest is None:
                return Done(None)
            # Checked on the log state that the entry extends. A version based on one with nothing left also has the
            # samples, excluded but not redacted. It must first be found, and published without them.
            moved_on = newest.id != nothing_left_of if nothing_left_of else newest.id in had
            if moved_on:
                return Done(newest)
            return decide_retire(
                state, self.dataset, unretired[0].number, f"takedown (log entry {self._deny.n})"
            )

        while (outcome := self._root.log.append(retire_next)).entry is not None:
            self._report.retired.append(f"{self.dataset}@{outcome.entry.body['number']}")
        if isinstance(outcome.value, VersionRecord):
            return outcome.value
        return None

    def _edit_derived(self) -> None:
        self._do(edit_derived(self._root.store, self._had(), self.marks))

    def _note_leftovers(self) -> None:
        add_to_record(self._root.store, self._deny.n, find_leftovers(self._root, self.dataset, self.marks))

    def _edit_lifecycle(self) -> None:
        store = self._root.store
        rows = self._findings.rows
        instead = self._replacements() | part_samples(self._root, self.dataset, rows, self.marks)
        lifecycle = lifecycle_edits(store, self.dataset, self.marks, instead)
        self._do(
            page_edits(store, self.dataset, self.marks, everything=bool(lifecycle.puts or lifecycle.deletes))
        )
        self._do(lifecycle)

    def _do(self, edits: Edits) -> None:
        self._report.touched += apply_edits(self._root.store, self._deny.n, self.dataset, edits)

    def _had(self) -> list[VersionRecord]:
        ids = read_record(self._root.store, self._deny.n).versions()
        return [record for record in self._root.state.versions(self.dataset) if record.id in ids]

    def _zeros(self) -> Sequence[Place]:
        newest = self._root.state.newest(self.dataset)
        rows = self._findings.rows
        had = {record.id for record in self._findings.versions}
        if newest is None or not rows or newest.id in had:
            return []
        return zeroed_ranges(Version.of_record(self._root.store, newest), rows)

    def _replacements(self) -> dict[str, dict[str, Any]]:
        newest = self._root.state.newest(self.dataset)
        rows = self._findings.rows
        if newest is None or not rows:
            return {}
        version = Version.of_record(self._root.store, newest)
        now = {
            (shard["part"], shard["group"]): shard
            for shard in version.parts.shard_rows().to_pylist()
            if shard["part"] in rows
        }

        def replaced(versions: WholeVersions) -> dict[str, dict[str, Any]]:
            old: dict[str, dict[str, Any]] = {}
            for _, earlier in versions:
                for shard in earlier.parts.shard_rows().to_pylist():
                    new = now.get((shard["part"], shard["group"]))
                    if new is not None and new["path"] != shard["path"]:
                        old[shard["path"]] = new
            return old

        return read_whole_versions(self._root, self.dataset, replaced)
