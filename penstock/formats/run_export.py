"""Export a version to another format, unit by unit; a killed export can be repeated."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from loader import Version
from loader.errors import InvalidRuntime
from loader.storage import Store

from ..progress import progress
from ..units import size
from . import exporter_named
from .export_selection import ExportSelection, WorkUnit, select
from .exporter import Exporter, ExportJournal, Loss, Outbox, refuse
from .lerobot.norm_stats import norm_at
from .unit_threads import in_threads
from .verbatim_export import note_of, registered_objects

LEROBOT = "lerobot"
"""The format that has statistics."""
WORKERS = 4
"""Default number of units written concurrently."""


@dataclass(slots=True, kw_only=True)
class ExportReport:
    """Counts and failures of one export."""

    format: str
    """Format name."""
    url: str
    """Target URL."""
    version: str
    """Version name."""
    id: str
    """Version id."""
    samples: int = 0
    """Number of samples now in the target."""
    objects: int = 0
    """Number of objects now in the target."""
    nbytes: int = 0
    """Total size of these objects, in bytes."""
    skipped: int = 0
    """Number of objects that an earlier run wrote."""
    lost: list[dict[str, str]] = field(default_factory=list)
    """Name and reason (`why`) of each field or column that the format cannot represent."""
    failures: list[str] = field(default_factory=list)
    """One error per unit that could not be written."""

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
    was_there: bool


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
) -> ExportReport:
    """Write a version's live samples into an empty store, or resume the same export. The report names units that fail.

    Objects of the registered format are copied unchanged if all their samples are exported. Memory: 32 MiB or one
    larger field per thread; one row of the samples table per sample.

    where: SQL expression that selects samples.
    without: fields and columns to leave out.
    norm: path of a norm in the root, whose mean, std and quantiles LeRobot's metadata then has.
    lossy: True to leave out what the format cannot represent; False to raise.

    Raises: LossyExport; Conflict if the target has other objects; InvalidRuntime; InvalidStore for an unknown format;
    the errors of `select`.
    """
    if workers < 1:
        raise InvalidRuntime(f"--workers {workers}: a number of threads above 0 is needed")
    exporter, selection = exporter_named(format), select(version, where, without)
    if norm:
        if format != LEROBOT:
            raise InvalidRuntime(f"--norm {norm}: {format} has no statistics; {LEROBOT} has")
        selection = replace(selection, norm=norm_at(version, norm))
    registered = None if without or norm else registered_objects(selection, format)
    exporter = registered or exporter
    losses = exporter.losses(selection)
    if not lossy:
        refuse(format, version.name, losses)
    report = ExportReport(format=format, url=store.url, version=version.name, id=version.id)
    report.lost = [loss._asdict() for loss in losses]
    identity = _identity(version, format, where, without, losses) | ({"norm": norm} if norm else {})
    # Copied and written exports have different units, so neither can resume the other.
    journal = ExportJournal(store, identity | ({"copied": True} if registered else {}))
    units, facts = exporter.units(selection), dict[int, dict[str, Any]]()
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
        note = (
            note_of(version) if registered else summary
        )  # registered objects may themselves be an export of penstock
        journal.finish({**summary, **(note or {})}, is_ours=note is not None)
    return report


class _ExportWork:
    def __init__(
        self, exporter: Exporter, selection: ExportSelection, store: Store, journal: ExportJournal
    ) -> None:
        self._exporter, self._selection, self._store, self._journal = exporter, selection, store, journal

    def __call__(self, unit: WorkUnit) -> _ExportedUnit:
        if (note := self._journal.find(unit.number)) is not None:
            return _ExportedUnit(unit, note, was_there=True)
        outbox = Outbox(self._store)
        facts = self._exporter.write(self._selection, unit, outbox)
        note = {"facts": facts, "n_samples": len(unit.ordinals), "objects": outbox.objects}
        self._journal.add(unit.number, note)
        return _ExportedUnit(unit, note, was_there=False)


def _identity(
    version: Version, format: str, where: str | None, without: Collection[str], losses: list[Loss]
) -> dict[str, Any]:
    return {
        "penstock_export": 1,
        "format": format,
        "version": version.name,
        "id": version.id,
        "where": where,
        "without": sorted(set(without)),
        "lost": [loss.name for loss in losses],
    }


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
    report.skipped += len(objects) if was_there else 0
