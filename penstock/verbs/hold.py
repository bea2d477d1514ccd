"""`penstock hold add|release|ls`: versions whose bytes stay."""

from argparse import ArgumentParser, Namespace

import loader

from ..console.table import Table
from .verb import Answer, Verb

FORM = ("{:<24}", " {}", ": {}")


def _whose(parser: ArgumentParser) -> None:
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument("--by", required=True, help="who holds it: a person, a job, a matter")


def _why(parser: ArgumentParser) -> None:
    _whose(parser)
    parser.add_argument("--why", required=True)


def add(arguments: Namespace) -> Answer:
    """Hold a version: no collector deletes its bytes, and no policy retires it."""
    root = loader.Root(arguments.root)
    root.hold(arguments.ref, by=arguments.by, why=arguments.why)
    record = root.record(arguments.ref)
    (held,) = (one for one in root.state.holds_of(record.dataset, record.number) if one.by == arguments.by)
    body = {"version": record.name, "id": record.id, "by": held.by, "why": held.why}
    return body, f"{record.name} is held by {held.by}: {held.why}", 0


def release(arguments: Namespace) -> Answer:
    """Release a hold. Exit status 2 where there is no such hold."""
    root = loader.Root(arguments.root)
    record = root.record(arguments.ref, retired=True)
    done = root.release(arguments.ref, by=arguments.by)
    text = f"{record.name} is no longer held by {arguments.by}"
    if not done:
        holders = [one.by for one in root.state.holds_of(record.dataset, record.number)]
        text = f"{arguments.by} does not hold {record.name}; held by {', '.join(holders) or 'nobody'}"
    return {"version": record.name, "id": record.id, "released": done}, text, 0 if done else 2


def ls(arguments: Namespace) -> Answer:
    """List every hold, oldest first."""
    state = loader.Root(arguments.root).state
    body = [
        {"version": record.name, "id": record.id, "by": one.by, "why": one.why, "retired": record.retired}
        for one in state.holds
        if (record := state.version(one.dataset, one.number))
    ]
    rows = [(row["version"], row["by"], row["why"]) for row in body]
    table = Table(form=FORM, header=("version", "held by", "why"), rows=rows, titled=False)
    return body, [table] if rows else "no holds", 0


VERB = Verb(
    text="versions whose bytes stay, whatever is retired",
    verbs={
        "add": Verb(text="hold a version", run=add, arguments=_why),
        "release": Verb(text="release somebody's hold on a version", run=release, arguments=_whose),
        "ls": Verb(text="who holds what, and why", run=ls),
    },
)
