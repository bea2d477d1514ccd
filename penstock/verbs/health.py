"""`penstock doctor|verify|repair`: check a store, versions and the log."""

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING

import loader
from loader.errors import InvalidRuntime
from loader.storage import open_store

from ..units import size
from .verb import (
    Answer,
    argument,
    cluster_argument,
    flag,
    list_option,
    option,
    parse_cluster,
    parse_options,
    report_answer,
    verb,
)

if TYPE_CHECKING:
    from ..compute.cluster import Cluster
    from ..upkeep.verify.root import RootReport
    from ..upkeep.verify.shard import Problem


@verb(
    "check whether a store can hold a root, and its settings; writes a little and removes it",
    argument("url", "path or URL, with or without a root (default: --root)", nargs="?"),
    list_option(
        "--option NAME=VALUE",
        "option as in loader.Root(options=); keep keys in the environment or a profile",
        type=option,
    ),
    flag("--quick", "skip the listing of many keys"),
)
def run_doctor(arguments: Namespace) -> Answer:
    """Exit with 1 if a check fails."""
    from ..upkeep.doctor.examine import examine

    report = examine(arguments.url or arguments.root, parse_options(arguments.option), quick=arguments.quick)
    return report_answer(report, failed=report.failed)


@verb(
    "check stored hashes, counts and references",
    argument("ref", "e.g. photos@3; without one, the whole root", nargs="?"),
    flag("--full", "read every byte"),
    cluster_argument("file of a cluster that reads the shards, with --full"),
)
def run_verify(arguments: Namespace) -> Answer:
    """Exit with 1 if a problem is found."""
    from ..upkeep.verify.version import verify

    root = loader.Root(arguments.root)
    if arguments.cluster is not None and not arguments.full:
        raise InvalidRuntime("--cluster reads every byte; add --full")
    cluster = parse_cluster(arguments)
    if arguments.ref is None:
        return answer_of_root(root, full=arguments.full, cluster=cluster)
    report = verify(root, arguments.ref, full=arguments.full, cluster=cluster)
    how = (
        "every byte" if report.full else "tables, sizes, indexes and a row of each (--full reads every byte)"
    )
    of = ""
    if report.shards < report.of_shards:
        of = f" of {report.of_shards}"
    if report.unverified_nbytes:
        how += f"; {size(report.unverified_nbytes)} have no known checksum: read, not verified"
    summary = f"{report.version}: {report.shards}{of} shards, {report.rows} rows, {size(report.nbytes)}; checked {how}"
    return report.to_json(), _text(report.problems, [summary]), 1 if report.problems else 0


def answer_of_root(root: "loader.Root", *, full: bool, cluster: "Cluster | None" = None) -> Answer:
    from ..upkeep.verify.root import verify_root

    return _root(verify_root(root, full=full, cluster=cluster))


def _root(report: "RootReport") -> Answer:
    """Return the answer of `penstock verify` on a whole root. Exit status 1 if there is a problem."""
    lines = [f"{key}: not written by penstock; ignored" for key in report.foreign]
    lines += [f"{key}: belongs to a version that is not in the log" for key in report.nothing_leased]
    lines += [
        f"{report.unreferenced} objects ({size(report.unreferenced_nbytes)}) under data/ that no version names",
        f"{report.root}: {report.entries} log entries, {report.versions} versions ({report.retired} retired), "
        f"{report.shards} shards checked, {report.objects} objects ({size(report.nbytes)}), "
        f"{report.n_foreign} of them foreign",
    ]
    return report.to_json(), _text(report.problems, lines), 1 if report.problems else 0


def _text(problems: "Iterable[Problem]", lines: list[str]) -> str:
    wrong = [f"{problem.address}: {problem.what}" for problem in problems]
    lines[-1] += f": {len(wrong)} problems" if wrong else ": nothing wrong"
    return "\n".join([*wrong, *lines])


@verb(
    "repair a log with a damaged or misread entry",
    argument("--by", "person or ticket; recorded in the log", required=True),
    argument("--mirror", "path or URL of a copy of the root to compare with"),
    argument("--believe", "which of two readings is right", choices=("stored", "next")),
    flag("--apply", "write the repair (default: only list it)"),
)
def run_repair(arguments: Namespace) -> Answer:
    """Exit with 1 if a needed repair was not written."""
    from ..upkeep.repair import apply_repair, plan_repair

    store = loader.Root(arguments.root).alone.store
    mirror = None
    if arguments.mirror:
        mirror = open_store(arguments.mirror)
    steps = plan_repair(store, by=arguments.by, mirror=mirror, believe=arguments.believe)
    lines = [f"{step.key}: {step.why}" for step in steps]
    if not steps:
        lines.append("the log is intact: nothing to repair")
    elif arguments.apply:
        state = apply_repair(store, steps, by=arguments.by)
        lines.append(f"repaired: all {state.n} log entries of {store.url} are readable")
    else:
        lines.append(f"{len(steps)} objects to write; nothing was written: pass --apply to write them")
    body = {
        "root": store.url,
        "steps": [{"key": step.key, "n": step.n, "why": step.why} for step in steps],
        "applied": bool(steps and arguments.apply),
    }
    return body, "\n".join(lines), 1 if steps and not arguments.apply else 0
