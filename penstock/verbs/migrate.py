"""`penstock migrate plan|run|status URL`: mirrors of a root."""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack

import loader
from loader.storage import Store, open_store

from .doctor import option, options_of
from .verb import Answer, Verb


def _where(parser: ArgumentParser) -> None:
    parser.add_argument("url", help="path or URL of the mirror; an empty place becomes one")
    parser.add_argument(
        "--option",
        type=option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the mirror's store, as loader.Root(options=) takes them, again and again",
    )


def _plan_arguments(parser: ArgumentParser) -> None:
    _where(parser)
    parser.add_argument("--egress", type=float, metavar="USD", help="price per GB that leaves the source")
    parser.add_argument("--rclone", metavar="FILE", help="write paths for rclone copy --files-from-raw FILE")
    parser.add_argument("--s5cmd", metavar="FILE", help="write commands for s5cmd run FILE")


def _run_arguments(parser: ArgumentParser) -> None:
    _where(parser)
    parser.add_argument("--requests-per-s", type=float, metavar="N", help="at most (default: no limit)")
    parser.add_argument("--bytes-per-s", type=float, metavar="N", help="at most (default: no limit)")
    parser.add_argument("--at-once", type=int, default=16, metavar="N", help="objects (default: 16)")
    parser.add_argument("--scratch", metavar="FOLDER", help="for objects above 4 MiB on their way")


def _target(arguments: Namespace) -> Store:
    return open_store(arguments.url, options_of(arguments.option))


def plan(arguments: Namespace) -> Answer:
    """What bringing the mirror up to date would take."""
    from ..migrate.plan import plan_migration

    with ExitStack() as files:
        lists = {
            name: files.enter_context(open(path, "w", encoding="utf-8"))
            for name, path in (("rclone", arguments.rclone), ("s5cmd", arguments.s5cmd))
            if path
        }
        root = loader.Root(arguments.root)
        found = plan_migration(root, _target(arguments), egress=arguments.egress, **lists)
    return found.to_json(), found.to_text(), 0


def run(arguments: Namespace) -> Answer:
    """Bring the mirror up to date. Exit status 1 when an object could not be copied."""
    from ..migrate.pace import Pace
    from ..migrate.run import migrate

    report = migrate(
        loader.Root(arguments.root),
        _target(arguments),
        Pace(arguments.requests_per_s, arguments.bytes_per_s),
        at_once=max(1, arguments.at_once),
        scratch=arguments.scratch,
    )
    return report.to_json(), report.to_text(), int(bool(report.failures))


def status(arguments: Namespace) -> Answer:
    """How far the mirror is. Exit status 1 when it lags."""
    from ..migrate.contents import new_versions
    from ..migrate.journal import Journal
    from ..migrate.target import copied_entries

    root, target = loader.Root(arguments.root), _target(arguments)
    after, state = copied_entries(root.store, target), root.state
    missing = [one.name for one in new_versions(state, after)]
    body = {"entries": state.n, "copied_entries": after, "missing_versions": missing}
    body["unfinished_objects"] = len(Journal(target).done())
    text = f"log: {after} of {state.n} entries; versions that it lacks: {', '.join(missing) or 'none'}"
    if body["unfinished_objects"]:
        text += f"; an unfinished run has copied {body['unfinished_objects']} objects"
    return body, text, int(bool(missing))


VERB = Verb(
    text="mirrors: copies of a root in other stores, with the same ids",
    verbs={
        "plan": Verb(
            text="what it would take: objects, bytes, requests, cost", run=plan, arguments=_plan_arguments
        ),
        "run": Verb(text="make a mirror, or bring it up to date", run=run, arguments=_run_arguments),
        "status": Verb(text="how far a mirror is", run=status, arguments=_where),
    },
)
