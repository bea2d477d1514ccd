"""`penstock migrate plan|run|status|verify|promote URL`: mirrors of a root, and copies of plain prefixes."""

from argparse import Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING

import loader
from loader.errors import InvalidRuntime
from loader.storage import Store, open_store

from .health import answer_of_root
from .verb import (
    Answer,
    Verb,
    argument,
    cluster_argument,
    flag,
    parse_cluster,
    parse_options,
    report_answer,
    store_options,
    verb,
)

if TYPE_CHECKING:
    from ..upkeep.migrate.mirror_update import MigrationReport
    from ..upkeep.migrate.prefix_copy import PrefixReport


_TARGET = (
    argument("url", "path or URL of the target; an empty place becomes a mirror of the root"),
    store_options("--option", "the target's store"),
    argument("--scratch FOLDER", "folder for objects above 64 MiB in transit, and for the journal"),
)
_WHERE = (
    *_TARGET,
    argument("--from URL", "copy this plain prefix instead of the root", dest="source"),
    store_options("--from-option", "the store of --from"),
)
_PACE = (
    argument("--requests-per-s N", "at most (default: no limit)", type=float),
    argument("--bytes-per-s N", "at most (default: no limit)", type=float),
    argument("--at-once N", "objects (default: 16)", type=int, default=16),
)


def _target(arguments: Namespace) -> Store:
    return open_store(arguments.url, parse_options(arguments.option))


def _source(arguments: Namespace) -> Store | None:
    if arguments.from_option and not arguments.source:
        raise InvalidRuntime("--from-option needs --from: give the URL of its store")
    if arguments.source:
        return open_store(arguments.source, parse_options(arguments.from_option))
    return None


def _for_prefixes(arguments: Namespace) -> None:
    for name, is_given in (("--update", arguments.update), ("--hash", arguments.hash)):
        if is_given:
            raise InvalidRuntime(
                f"{name} is for plain prefixes, with --from URL: objects of a root never change, and shards and tables "
                "are checked against the hashes in its manifests; leave it out"
            )


def _at_once(arguments: Namespace) -> int:
    if arguments.at_once < 1:
        raise InvalidRuntime(
            f"--at-once {arguments.at_once}: a number of objects above 0 is needed",
            what="--at-once",
            given=arguments.at_once,
            accepted="a number above 0",
        )
    return int(arguments.at_once)


@verb(
    "estimate objects, bytes, requests and cost",
    *_WHERE,
    argument("--egress USD", "price per GB that leaves the source", type=float),
    argument("--rclone FILE", "write paths for rclone copy --files-from-raw FILE"),
    argument("--s5cmd FILE", "write commands for s5cmd run FILE"),
)
def plan(arguments: Namespace) -> Answer:
    from ..places import check_file_apart
    from ..upkeep.migrate.plan import plan_migration, plan_prefix

    source = _source(arguments)
    target = _target(arguments)
    for path in filter(None, (arguments.rclone, arguments.s5cmd)):
        for store in (source or loader.Root(arguments.root).store, target):
            check_file_apart(store, path, "Choose a path beside it")
    with ExitStack() as files:
        lists = {
            name: files.enter_context(open(path, "w", encoding="utf-8"))
            for name, path in (("rclone", arguments.rclone), ("s5cmd", arguments.s5cmd))
            if path
        }
        if source is not None:
            report = plan_prefix(source, target, scratch=arguments.scratch, egress=arguments.egress, **lists)
        else:
            report = plan_migration(loader.Root(arguments.root), target, egress=arguments.egress, **lists)
    return report_answer(report)


@verb(
    "make or update a mirror; copy a plain prefix",
    *_WHERE,
    *_PACE,
    cluster_argument(
        "file of a cluster whose machines copy; --at-once is per process, the limits are for all"
    ),
    flag("--update", "with --from: replace objects that changed at the source (default: only name them)"),
    argument(
        "--hash",
        "with --from: checksum in the manifest (default: sha256; crc32c takes a seventh of the processor time and "
        "detects damage, but does not prove that two objects are equal)",
        choices=("sha256", "crc32c"),
    ),
)
def run(arguments: Namespace) -> Answer:
    """Exit with 1 if an object failed."""
    from ..upkeep.copying.items import Pace

    source = _source(arguments)
    target = _target(arguments)
    pace = Pace(arguments.requests_per_s, arguments.bytes_per_s)
    at_once = _at_once(arguments)
    cluster = parse_cluster(arguments)
    report: MigrationReport | PrefixReport
    if source is not None:
        # Imported here: a prefix needs no tables of a root, whose imports take half a second.
        from ..upkeep.migrate.prefix_copy import migrate_prefix

        report = migrate_prefix(
            source,
            target,
            pace,
            at_once=at_once,
            scratch=arguments.scratch,
            replace=arguments.update,
            hash=arguments.hash or "sha256",
            cluster=cluster,
        )
    else:
        _for_prefixes(arguments)
        from ..upkeep.migrate.mirror_update import migrate  # imports for a root's tables take half a second

        root = loader.Root(arguments.root)
        report = migrate(root, target, pace, at_once=at_once, scratch=arguments.scratch, cluster=cluster)
    return report_answer(report, failed=not report.is_whole)


@verb("show a copy's progress", *_WHERE)
def status(arguments: Namespace) -> Answer:
    """Exit with 1 if the target lacks a version, retirement, tag or takedown."""
    from ..upkeep.copying.journal import Journal
    from ..upkeep.migrate.contents import new_versions
    from ..upkeep.migrate.mirror_update import lags, last_copied_entry
    from ..upkeep.migrate.prefix_copy import prefix_status

    source = _source(arguments)
    target = _target(arguments)
    if source is not None:
        report = prefix_status(source, target, arguments.scratch)
        return report_answer(report, failed=report.lags)
    root = loader.Root(arguments.root)
    after = last_copied_entry(root.store, target)
    state = root.state
    missing = [one.name for one in new_versions(state, after)]
    is_behind = lags(root.store, after, state.n)
    body = {"entries": state.n, "copied_entries": after, "missing_versions": missing, "lags": is_behind}
    with Journal(target, scratch=arguments.scratch) as journal:
        body["unfinished_objects"] = len(journal)
    text = f"log: {after} of {state.n} entries; missing versions: {', '.join(missing) or 'none'}"
    if body["unfinished_objects"]:
        text += f"; an unfinished run has copied {body['unfinished_objects']} objects"
    return body, text, int(is_behind)


@verb("check a copy; for a prefix, also that all objects arrived", *_WHERE, flag("--full", "read every byte"))
def verify(arguments: Namespace) -> Answer:
    """Exit with 1 if a problem is found."""
    from ..upkeep.migrate.prefix_verify import verify_prefix

    source = _source(arguments)
    target = _target(arguments)
    if source is not None:
        report = verify_prefix(source, target, full=arguments.full, scratch=arguments.scratch)
        return report_answer(report, failed=report.problems)
    root = loader.Root(arguments.url, options=parse_options(arguments.option))
    return answer_of_root(root, full=arguments.full)


@verb(
    "make a mirror the primary, and the primary a mirror of it",
    *_TARGET,
    *_PACE,
    flag(
        "--primary-is-gone",
        "the primary is lost for good: promote without it, and lose what the mirror lacks",
    ),
)
def promote(arguments: Namespace) -> Answer:
    """Exit with 1 if the mirror cannot be promoted yet."""
    from ..upkeep.copying.items import Pace
    from ..upkeep.migrate.promote import promote, promote_alone

    target = _target(arguments)
    if arguments.primary_is_gone:
        done = promote_alone(target)
    else:
        pace = Pace(arguments.requests_per_s, arguments.bytes_per_s)
        at_once = _at_once(arguments)
        done = promote(loader.Root(arguments.root), target, pace, at_once=at_once, scratch=arguments.scratch)
    return report_answer(done, failed=not done.promoted)


VERB = Verb(
    text="copy a root to a mirror in another store, with the same ids, or a plain prefix (--from)",
    verbs={"plan": plan, "run": run, "status": status, "verify": verify, "promote": promote},
)
