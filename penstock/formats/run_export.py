"""Export a version to another format, unit by unit; a killed export can be repeated.

`registered_export` copies registered objects unchanged.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from loader import Version
from loader.dataset.versions.slice_members import SliceTerm, slice_term
from loader.errors import InvalidRuntime
from loader.storage import Store

from ..places import check_apart
from ..progress import progress
from ..threads import check_workers, in_threads
from ..units import size
from .exporter import Exporter, ExportJournal, ExportSelection, Loss, Outbox, WorkUnit, refuse, select
from .lerobot.row_statistics import read_norm
from .registered_export import export_note, registered_objects
from .registry import exporter_named

LEROBOT = "lerobot"
WORKERS = 4
"""Units written concurrently, by default."""


@dataclass(slots=True, kw_only=True)
class ExportReport:
    format: str
    """Format name."""
    url: str
    """Target."""
    version: str
    """Version name."""
    id: str
    """Version id."""
    samples: int = 0
    """Samples now in the target."""
    objects: int = 0
    """Objects now in the target."""
    nbytes: int = 0
    """Bytes of these objects."""
    skipped: int = 0
    """Objects that an earlier run wrote."""
    lost: list[dict[str, str]] = field(default_factory=list)
    """Name and reason (`why`) of each field or column that the format cannot represent."""
    failures: list[str] = field(default_factory=list)
    """One error per unit not written."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        lines = [
            f"{self.version}  {self.id}",
            f"{self.url}: {self.samples} samples as {self.format} in {self.objects} objects ({size(self.nbytes)}), "
            f"{self.skipped} of them were there",
            *(f"  lost: {one['name']}: {one['why']}" for one in self.lost),
            *(f"  failed: {why}" for why in self.failures),
        ]
        if self.failures:
            lines.append("the export is not complete: run the same command again")
        return "\n".join(lines)


class _ExportedUnit(NamedTuple):
    unit: WorkUnit
    note: dict[str, Any]
    """The journal's: facts for `finish`, number of samples, and objects."""
    was_there: bool
    """True if an earlier run wrote it."""


def export(
    version: Version,
    format: str,
    store: Store,
    *,
    where: str | None = None,
    without: Collection[str] = (),
    lossy: bool = False,
    workers: int = WORKERS,
    norm: str = "",
    slice_name: str | None = None,
) -> ExportReport:
    """Write a version's live samples into an empty store, or resume the same export. The report names units that fail.

    Objects of the registered format are copied unchanged if all their samples are exported. Memory: 32 MiB or one
    larger field per thread; one row of the samples table per sample.

    where: SQL expression that selects samples.
    without: fields and columns to leave out.
    slice_name: exports only the samples of this slice.
    norm: path of a norm in the root, whose mean, std and quantiles LeRobot's metadata then has.
    lossy: True to leave out what the format cannot represent; False to raise.

    Raises: LossyExport; Conflict if the target has other objects; InvalidRuntime; InvalidStore for an unknown format,
    or if target and root contain one another; the errors of `select`.
    """
    check_workers(workers)
    check_apart(version.store, store, "Choose a target beside the root")
    term = None if slice_name is None else slice_term(version, slice_name, None, without=False)
    exporter = exporter_named(format)
    selection = select(version, where, without, term)
    registered = None
    if norm:
        selection = _with_norm(selection, format, norm)
    elif not without:  # the objects have all fields, and their own statistics
        registered = registered_objects(selection, format)
    exporter = registered or exporter
    losses = exporter.losses(selection)
    if not lossy:
        refuse(format, version.name, losses)
    lost = [loss._asdict() for loss in losses]
    report = ExportReport(format=format, url=store.url, version=version.name, id=version.id, lost=lost)
    is_copied = registered is not None
    identity = _identity(version, format, where, without, losses, norm, term, is_copied=is_copied)
    journal = ExportJournal(store, identity)
    units = exporter.units(selection)
    facts: dict[int, dict[str, Any]] = {}  # by number of the unit
    work = _ExportWork(exporter, selection, store, journal)
    finished = in_threads(work, units, workers, report.failures)
    for done in progress(finished, "export", lambda written: len(written.unit.ordinals), selection.n_samples):
        facts[done.unit.number] = done.note["facts"]
        _count(report, done.note["objects"], done.was_there)
        report.samples += len(done.unit.ordinals)
    if not report.failures:
        outbox = Outbox(store)
        exporter.finish(selection, [facts[unit.number] for unit in units], outbox)
        _count(report, outbox.objects, was_there=False)
        summary = _summary(selection, report, outbox)
        _finish_journal(journal, version, summary, is_copied=is_copied)
    return report


def _finish_journal(
    journal: ExportJournal, version: Version, summary: dict[str, Any], *, is_copied: bool
) -> None:
    if not is_copied:
        journal.finish(summary, is_ours=True)
        return
    # Registered objects may themselves be an export of penstock.
    note = export_note(version)
    journal.finish({**summary, **(note or {})}, is_ours=note is not None)


def _with_norm(selection: ExportSelection, format: str, norm: str) -> ExportSelection:
    if format != LEROBOT:
        message = f"--norm {norm}: {format} has no statistics; {LEROBOT} has"
        raise InvalidRuntime(message, what="--norm", given=format, accepted=LEROBOT)
    return replace(selection, norm=read_norm(selection.version, norm))


class _ExportWork:
    def __init__(
        self, exporter: Exporter, selection: ExportSelection, store: Store, journal: ExportJournal
    ) -> None:
        self._exporter = exporter
        self._selection = selection
        self._store = store
        self._journal = journal

    def __call__(self, unit: WorkUnit) -> _ExportedUnit:
        if (note := self._journal.find(unit.number)) is not None:
            return _ExportedUnit(unit, note, was_there=True)
        outbox = Outbox(self._store)
        facts = self._exporter.write(self._selection, unit, outbox)
        note = {"facts": facts, "n_samples": len(unit.ordinals), "objects": outbox.objects}
        self._journal.add(unit.number, note)
        return _ExportedUnit(unit, note, was_there=False)


def _identity(
    version: Version,
    format: str,
    where: str | None,
    without: Collection[str],
    losses: list[Loss],
    norm: str,
    term: SliceTerm | None,
    *,
    is_copied: bool,
) -> dict[str, Any]:
    identity: dict[str, Any] = {
        "penstock_export": 1,
        "format": format,
        "version": version.name,
        "id": version.id,
        "where": where,
        "without": sorted(set(without)),
        "lost": [loss.name for loss in losses],
    }
    # Only what is set, so that other exports keep their identity.
    if norm:
        identity["norm"] = norm
    if term is not None:
        identity["slice"] = term.to_json()
    if is_copied:
        # Copied and written exports have different units, so neither can resume the other.
        identity["copied"] = True
    return identity


def _summary(selection: ExportSelection, report: ExportReport, outbox: Outbox) -> dict[str, Any]:
    return {
        "columns": selection.columns,
        "facts": {name: fact for name, fact in selection.version.facts.items() if name in selection.fields},
        "fields": list(selection.fields),
        "n_samples": report.samples,
        "n_objects": report.objects,
        "nbytes": report.nbytes,
        "objects": outbox.objects,
    }


def _count(report: ExportReport, objects: list[dict[str, Any]], was_there: bool) -> None:
    report.objects += len(objects)
    report.nbytes += sum(one["nbytes"] for one in objects)
    if was_there:
        report.skipped += len(objects)
