"""`penstock verify [REF]`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING

import loader
from loader.errors import InvalidRuntime

from ..units import size
from .verb import Answer, Verb, cluster_argument, cluster_of

if TYPE_CHECKING:
    from ..compute.cluster import Cluster
    from ..upkeep.verify.root import RootReport
    from ..upkeep.verify.shard import Problem


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", nargs="?", help="e.g. photos@3; without one, the whole root")
    parser.add_argument("--full", action="store_true", help="read every byte")
    cluster_argument(parser, "file of a cluster that reads the shards, with --full")


def run(arguments: Namespace) -> Answer:
    """Check a version, or the whole root. Exit status 1 when anything is wrong."""
    from ..upkeep.verify.version import verify

    root = loader.Root(arguments.root)
    if arguments.cluster is not None and not arguments.full:
        raise InvalidRuntime("--cluster reads every byte; add --full")
    cluster = cluster_of(arguments)
    if arguments.ref is None:
        return answer_of_root(root, full=arguments.full, cluster=cluster)
    report = verify(root, arguments.ref, full=arguments.full, cluster=cluster)
    how = (
        "every byte" if report.full else "tables, sizes, indexes and a row of each (--full reads every byte)"
    )
    of = f" of {report.of_shards}" if report.shards < report.of_shards else ""
    if report.unverified_nbytes:
        how += f"; of {size(report.unverified_nbytes)} no checksum is known: they were read, and held against nothing"
    said = f"{report.version}: {report.shards}{of} shards, {report.rows} rows, {size(report.nbytes)}; checked {how}"
    return report.to_json(), _text(report.problems, [said]), 1 if report.problems else 0


def answer_of_root(root: "loader.Root", *, full: bool, cluster: "Cluster | None" = None) -> Answer:
    """Check a whole root, and answer as `penstock verify`."""
    from ..upkeep.verify.root import verify_root

    return _root(verify_root(root, full=full, cluster=cluster))


def _root(report: "RootReport") -> Answer:
    lines = [f"{key}: not penstock's; left alone" for key in report.foreign]
    lines += [f"{key}: of a version that the log does not have" for key in report.nothing_leased]
    lines += [
        f"{report.unreferenced} objects ({size(report.unreferenced_nbytes)}) under data/ that no version names",
        f"{report.root}: {report.entries} log entries, {report.versions} versions ({report.retired} retired), "
        f"{report.shards} shards looked at, {report.objects} objects ({size(report.nbytes)}), "
        f"{report.n_foreign} of them foreign",
    ]
    return report.to_json(), _text(report.problems, lines), 1 if report.problems else 0


def _text(problems: "Iterable[Problem]", lines: list[str]) -> str:
    wrong = [f"{problem.address}: {problem.what}" for problem in problems]
    lines[-1] += f": {len(wrong)} problems" if wrong else ": nothing wrong"
    return "\n".join([*wrong, *lines])


VERB = Verb(text="check stored hashes, counts and references", run=run, arguments=arguments)
