"""`penstock takedown run`: find and take the steps that a deny entry requires.

1. Record the findings.
2. For each dataset, commit a version without the samples, and retire the versions that had them (`steps.py`).
3. Rewrite or delete objects that no version protects, then the records of training runs.
4. Delete raw objects last, when everything that stays is known.

The store gives the remaining work of each step, so a killed run can be repeated.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loader import Root
from loader.dataset.log.state import Deny
from loader.errors import TakedownNotFound
from loader.storage import is_there

from ...denied.find import Findings, all_datasets, find
from ...denied.keys_tables import KeysTables, keys_files, read_names
from ...denied.readable_versions import WholeVersions, read_whole_versions
from ...denied.record import Place, add_to_record, read_record
from ...denied.sources import landings, why_not
from ...progress import progress
from .derived import apply_edits
from .raw_objects import (
    RawDeletion,
    Uris,
    check_whole,
    deleted_raw,
    raw_places,
    shared_raw_objects,
)
from .run_records import records_with_names, run_record_edits
from .steps import Steps, TakedownReport

if TYPE_CHECKING:
    from ...compute.cluster import Cluster


TrainedOn = Callable[[str, Collection[str]], Iterable[Mapping[str, Any]]]
"""From a dataset and keys of samples to runs: `run`, `samples`, `steps`, `checkpoints` and `error` of each."""


def find_trainings(root: Root, findings: Iterable[Findings], trained: TrainedOn) -> Iterator[Place]:
    """Yield an entry of the record per dataset and run."""
    for of in findings:
        keys = _keys(root, of) if of.rows else set()
        for run in trained(of.dataset, keys) if keys else ():
            steps = run["steps"]
            yield {
                "check": "trained",
                "what": f"run {run['run']}",
                "of": of.dataset,
                "run": run["run"],
                "samples": run["samples"],
                "first_step": min(steps, default=-1),
                "last_step": max(steps, default=-1),
                "checkpoints": list(run["checkpoints"]),
                "error": run["error"].partition(":")[0],  # a message might name a sample
            }


def newest_entries(recorded: Sequence[Place], now: Sequence[Place]) -> list[dict[str, Any]]:
    """Return one entry per dataset and run: the one with most steps, or an earlier one if unknown by now."""
    newest: dict[tuple[str, str], Place] = {}
    for place in (*recorded, *now):
        name = (place["of"], place["run"])
        if name not in newest or place["last_step"] >= newest[name]["last_step"]:
            newest[name] = place
    names = ("run", "of", "samples", "first_step", "last_step", "checkpoints", "error")
    return [{name: newest[key][name] for name in names} for key in sorted(newest)]


def _keys(root: Root, of: Findings) -> set[str]:
    """Return the keys of the denied samples in all versions that can be read."""

    def version_keys(versions: WholeVersions) -> set[str]:
        """Return the keys of the denied rows in these versions."""
        files = {}  # path -> file: versions share files
        for _, version in versions:
            for file in keys_files(version):
                files[file["path"]] = file
        keys: set[str] = set()
        for file in files.values():
            table = read_names(root.store, file).select(["part", "row", "key"])
            part_names, rows, row_keys = (column.to_pylist() for column in table.columns)
            for part, row, key in zip(part_names, rows, row_keys, strict=True):
                if row in of.rows.get(part, ()):
                    keys.add(key)
        return keys

    return read_whole_versions(root, of.dataset, version_keys)


def deny_entry(root: Root, n: int) -> Deny:
    """Return the takedown with this number. Raises: TakedownNotFound, which lists the existing ones."""
    for deny in root.state.denies:
        if deny.n == n:
            return deny
    there = ", ".join(str(deny.n) for deny in root.state.denies) or "none"
    message = f"{root.url} has no takedown {n}; it has {there}. penstock takedown request makes one"
    raise TakedownNotFound(message, what="takedown", where=root.url, given=n, accepted=there)


def keys_tables(root: Root, deny: Deny, cluster: "Cluster | None") -> KeysTables:
    """Return a reader for keys tables. cluster: reads them; None: this process."""
    if cluster is None:
        return KeysTables(root, deny)
    from ...denied.keys_job import KeysTablesOnCluster

    return KeysTablesOnCluster(root, deny, cluster)


def run_takedown(
    root: Root,
    n: int,
    *,
    apply: bool,
    raw: RawDeletion | None = None,
    raw_below: Collection[str] = (),
    cluster: "Cluster | None" = None,
    trained: TrainedOn | None = None,
) -> TakedownReport:
    """Find the samples, and with `apply` redact them. Reads every version's keys.

    raw: deletes sidecar files, then raw objects that nothing else was cut from; None: keep them.
    raw_below: URLs below which raw objects may be deleted; empty: the landing locations of the dataset's batches.
    cluster: reads the keys tables; None: this process.
    trained: finds the runs that trained on the samples, before anything changes; None: no runs are listed.

    Raises: TakedownNotFound; InvalidRuntime as `check_whole`; Denied as `Steps.take`; Corrupt; StoreError; Fenced; with
    a cluster as `outcomes_anew`.
    """
    deny = deny_entry(root, n)
    check_whole(root, deny)
    tables = keys_tables(root, deny, cluster)
    known = read_record(root.store, n).marks
    findings = [
        find(tables, dataset, known.get(dataset, ()))
        for dataset in progress(all_datasets(root), f"takedown {n}: find")
    ]
    report = TakedownReport(n=n, applied=apply)
    report.samples = {one.dataset: sum(map(len, one.rows.values())) for one in findings if one.rows}
    report.adopted = sorted(set().union(*(one.adopted for one in findings)))
    trainings = [] if trained is None else list(find_trainings(root, findings, trained))
    if apply:
        add_to_record(root.store, n, trainings)
    report.trained = newest_entries(read_record(root.store, n).having("trained"), trainings)
    uris: Uris = {one.dataset: one.uris for one in findings}
    _sort_raw(root, uris, report)
    if apply:
        # Before the redaction: afterwards no table names the samples' raw objects.
        _note_raw(root, deny, uris, report.uris)
        steps = [Steps(tables, one, report) for one in findings]
        uris = {one.dataset: one.take() for one in progress(steps, f"takedown {n}: redact")}
        for edits in run_record_edits(root.store, [one.marks for one in steps], report.newer.append):
            report.touched += apply_edits(root.store, n, "", edits)
        report.named = sorted(records_with_names(root.store, [one.marks for one in steps]))
        _sort_raw(root, uris, report)  # again: what others published meanwhile
        _note_raw(root, deny, uris, report.uris)
        if raw is not None:
            recorded = deleted_raw(read_record(root.store, n), deny, uris)
            exclusive = _files(root, uris, report, recorded, raw_below, raw)
            _delete_raw(root, deny, uris, exclusive, raw.delete)
    record = read_record(root.store, n)
    report.deleted = sorted(deleted_raw(record, deny, uris) & set(report.uris))
    report.waiting = sum(1 for place in record.having("absent") if is_there(root.store, place["path"]))
    return report


def _sort_raw(root: Root, uris: Uris, report: TakedownReport) -> None:
    shared = shared_raw_objects(root, uris)
    report.uris = sorted(set().union(*uris.values()) - shared)
    report.shared = sorted(shared)


def _note_raw(root: Root, deny: Deny, uris: Uris, exclusive: Collection[str]) -> None:
    add_to_record(root.store, deny.n, raw_places(deny, uris, exclusive, deleted=False))


def _files(
    root: Root,
    uris: Uris,
    report: TakedownReport,
    recorded: Collection[str],
    raw_below: Collection[str],
    raw: RawDeletion,
) -> dict[str, list[str]]:
    """Return raw object to delete -> its sidecar files, then itself. Adds the others to `report.refused`.

    recorded: URIs that are on record as deleted.
    raw_below: places below which objects may be deleted; empty for the landing places of their datasets.
    """
    places: dict[str, set[str]] = {uri: set() for uri in report.uris}
    for dataset, cut_of in uris.items():
        own = set(cut_of) & places.keys()
        if own:
            dataset_places = raw_below or landings(root.store, dataset)
            for uri in own:
                places[uri].update(dataset_places)
    report.refused = {}
    for uri in report.uris:
        why = why_not(uri, places[uri], root.url)
        if not why and uri not in recorded:
            why = raw.why_unreadable(uri, places[uri])
        if why:
            report.refused[uri] = why
    allowed = {uri: places[uri] for uri in report.uris if uri not in report.refused}
    files_by_uri = raw.files_beside(allowed, report.refused)
    files_by_dataset: dict[str, set[str]] = {}
    for dataset, cut_of in uris.items():
        files_by_dataset[dataset] = {file for uri in cut_of for file in files_by_uri.get(uri, ())}
    needed = shared_raw_objects(root, files_by_dataset)
    for uri, files in files_by_uri.items():
        whys = [f"its file {file}: {why}" for file in files if (why := why_not(file, places[uri], root.url))]
        whys += [
            f"its file {file}: other samples were cut from it, or will be" for file in files if file in needed
        ]
        if whys:
            report.refused[uri] = whys[0]
    return {uri: [*files_by_uri.get(uri, ()), uri] for uri in report.uris if uri not in report.refused}


def _delete_raw(
    root: Root,
    deny: Deny,
    uris: Uris,
    exclusive: Mapping[str, Sequence[str]],
    delete: Callable[[str], None],
) -> None:
    done = []
    try:
        for uri, files in exclusive.items():
            # The object last: without it, no later run would find its sidecar files.
            for file in files:
                delete(file)
            done.append(uri)
    # After an error too: each deletion must be on record.
    finally:
        add_to_record(root.store, deny.n, raw_places(deny, uris, done, deleted=True))
