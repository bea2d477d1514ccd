"""`penstock takedown run`: find and take the steps that a deny entry requires.

1. Record the findings.
2. For each dataset, commit a version without the samples, and retire the versions that had them (`steps.py`).
3. Rewrite or delete objects that no version protects, then the records of training runs.
4. Delete raw objects last, when everything that stays is known.

The store gives the remaining work of each step, so a killed run can be repeated.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from loader import Root
from loader.dataset.log.state import Deny
from loader.errors import TakedownNotFound
from loader.storage import is_there

from ...denied.find import all_datasets, find
from ...denied.keys_tables import KeysTables
from ...denied.record import add_to_record, read_record
from ...denied.sources import landings, why_not
from ...progress import progress
from .derived import do
from .raw_objects import (
    FilesBeside,
    RawDeletion,
    Uris,
    check_whole,
    deleted_raw,
    raw_places,
    used_by_others,
)
from .run_records import run_record_edits
from .steps import Steps, TakedownReport
from .trainings import TrainedOn, newest_of, trainings_on

if TYPE_CHECKING:
    from ...compute.cluster import Cluster


def deny_entry(root: Root, n: int) -> Deny:
    """Return the takedown with this number. Raises: TakedownNotFound, which lists the existing ones."""
    for deny in root.state.denies:
        if deny.n == n:
            return deny
    there = ", ".join(str(deny.n) for deny in root.state.denies) or "none"
    raise TakedownNotFound(
        f"{root.url} has no takedown {n}; it has {there}. penstock takedown request makes one"
    )


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
    """Find the samples, and with `apply` redact them.

    Reads every version's keys; rewrites each shard with denied samples once.

    raw: deletes sidecar files, then raw objects that nothing else was cut from; None: keep them.
    raw_below: URLs below which raw objects may be deleted; empty: the landing locations of the dataset's batches.
    cluster: reads the keys tables; None: this process.
    trained: finds the runs that trained on the samples, before anything changes; None: no runs are listed.

    Raises: TakedownNotFound; InvalidRuntime as `check_whole`; Corrupt; StoreError; Fenced; with a cluster as
    `outcomes_anew`.
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
    trainings = [] if trained is None else list(trainings_on(root, findings, trained))
    if apply:
        add_to_record(root.store, n, trainings)
    report.trained = newest_of(read_record(root.store, n).having("trained"), trainings)
    uris: Uris = {one.dataset: one.uris for one in findings}
    _sort_raw(root, uris, report)
    if apply:
        _note_raw(root, deny, uris, report.uris)
        steps = [Steps(tables, one, report) for one in findings]
        uris = {one.dataset: one.take() for one in progress(steps, f"takedown {n}: redact")}
        for edits in run_record_edits(root.store, [one.marks for one in steps], report.newer.append):
            report.touched += do(root.store, n, "", edits)
        _sort_raw(root, uris, report)  # again: what others published meanwhile
        _note_raw(root, deny, uris, report.uris)
        if raw is not None:
            exclusive = _files(root, uris, report, raw_below, raw.files_beside)
            _delete_raw(root, deny, uris, exclusive, raw.delete)
    record = read_record(root.store, n)
    report.deleted = sorted(deleted_raw(record, deny, uris) & set(report.uris))
    report.waiting = sum(1 for place in record.having("absent") if is_there(root.store, place["path"]))
    return report


def _sort_raw(root: Root, uris: Uris, report: TakedownReport) -> None:
    shared = used_by_others(root, uris)
    report.uris, report.shared = sorted(set().union(*uris.values()) - shared), sorted(shared)


def _note_raw(root: Root, deny: Deny, uris: Uris, exclusive: Collection[str]) -> None:
    add_to_record(root.store, deny.n, raw_places(deny, uris, exclusive, deleted=False))


def _files(
    root: Root, uris: Uris, report: TakedownReport, raw_below: Collection[str], files_beside: FilesBeside
) -> dict[str, list[str]]:
    sources = {
        of: raw_below or landings(root.store, of)
        for of, cut_of in uris.items()
        if set(cut_of) & set(report.uris)
    }
    places = {uri: set().union(*(sources[of] for of in sources if uri in uris[of])) for uri in report.uris}
    reasons = {uri: why_not(uri, places[uri], root.url) for uri in report.uris}
    report.refused = {uri: why for uri, why in reasons.items() if why}
    files_of = files_beside(
        {uri: places[uri] for uri in report.uris if uri not in report.refused}, report.refused
    )
    needed = used_by_others(
        root, {of: {one for uri in cut_of for one in files_of.get(uri, ())} for of, cut_of in uris.items()}
    )
    for uri, files in files_of.items():
        whys = [f"its file {one}: {why}" for one in files if (why := why_not(one, places[uri], root.url))]
        whys += [
            f"its file {one}: something else was cut of it, or is to be" for one in files if one in needed
        ]
        if whys:
            report.refused[uri] = whys[0]
    return {uri: [*files_of.get(uri, ()), uri] for uri in report.uris if uri not in report.refused}


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
            for file in files:
                delete(file)
            done.append(uri)
    finally:
        add_to_record(root.store, deny.n, raw_places(deny, uris, done, deleted=True))
