"""`penstock retire|hold|lease`: which versions stay in use, and which bytes are kept."""

from argparse import ArgumentParser, Namespace

import loader

from ..units import utc_us
from .verb import Answer, Table, Verb


def _retire_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument("--reason", required=True)


def run_retire(arguments: Namespace) -> Answer:
    root = loader.Root(arguments.root)
    record = root.record(arguments.ref, retired=True)
    root.retire(arguments.ref, reason=arguments.reason)
    return {"name": record.name, "id": record.id}, f"{record.name} is retired: {arguments.reason}", 0


HOLD_FORM = ("{:<24}", " {}", ": {}")


def _whose(parser: ArgumentParser) -> None:
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument("--by", required=True, help="holder: a person, a job or a legal matter")


def _why(parser: ArgumentParser) -> None:
    _whose(parser)
    parser.add_argument("--why", required=True)


def add_hold(arguments: Namespace) -> Answer:
    """Hold a version: no collector deletes its bytes, and no policy retires it."""
    root = loader.Root(arguments.root)
    root.hold(arguments.ref, by=arguments.by, why=arguments.why)
    record = root.record(arguments.ref)
    (held,) = (one for one in root.state.holds_of(record.dataset, record.number) if one.by == arguments.by)
    body = {"version": record.name, "id": record.id, "by": held.by, "why": held.why}
    return body, f"{record.name} held by {held.by}: {held.why}", 0


def release_hold(arguments: Namespace) -> Answer:
    """Exit with 2 if there is none."""
    root = loader.Root(arguments.root)
    record = root.record(arguments.ref, retired=True)
    done = root.release(arguments.ref, by=arguments.by)
    text = f"{record.name} is no longer held by {arguments.by}"
    if not done:
        holders = [one.by for one in root.state.holds_of(record.dataset, record.number)]
        text = f"{arguments.by} does not hold {record.name}; holders: {', '.join(holders) or 'none'}"
    return {"version": record.name, "id": record.id, "released": done}, text, 0 if done else 2


def ls_hold(arguments: Namespace) -> Answer:
    """List every hold, oldest first."""
    state = loader.Root(arguments.root).state
    body = [
        {"version": record.name, "id": record.id, "by": one.by, "why": one.why, "retired": record.retired}
        for one in state.holds
        if (record := state.version(one.dataset, one.number))
    ]
    rows = [(row["version"], row["by"], row["why"]) for row in body]
    table = Table(form=HOLD_FORM, header=("version", "held by", "why"), rows=rows, titled=False)
    return body, [table] if rows else "no holds", 0


LEASE_FORM = ("{:<24}", " {}", " on {}", ", {}")


def _lease_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--collector",
        default=None,
        metavar="NAME",
        help="collector whose notes give the age (default: this host's)",
    )


def ls_lease(arguments: Namespace) -> Answer:
    """List versions' readers, with their last heartbeat's age and how long a collector saw no change.

    The age compares the store's clock with this machine's. A collector measures on its own clock.
    """

    from loader.dataset.leases import FOLDER, list_leases

    from ..units import length
    from ..upkeep.gc.clients import check_name, now, own_name, read_signs, silent_s

    root = loader.Root(arguments.root)
    names = {record.id: record.name for dataset in root.datasets() for record in root.versions(dataset)}
    signs = read_signs(root.store, check_name(arguments.collector or own_name()))
    at, wall_us = now(), utc_us()
    modified_us = {info.key: info.modified_us for info in root.store.list(FOLDER)}
    body = [
        {
            "version": names.get(id, id),
            "holder": one.holder,
            "host": one.host,
            "beat": one.beat,
            "beat_age_s": None if (us := modified_us.get(one.key)) is None else max(0, wall_us - us) / 1e6,
            "silent_s": silent_s(signs, one, at),
        }
        for one in list_leases(root.store)
        for id in one.versions
    ]
    body.sort(key=lambda row: (str(row["version"]), str(row["holder"])))
    rows = []
    for row in body:
        age, silent = row["beat_age_s"], row["silent_s"]
        seen = "" if age is None else f"last beat {length(float(str(age)))} ago, "
        if silent is None:
            seen += "not seen by a collector yet"
        else:
            seen += f"unchanged for at least {length(float(str(silent)))}" if silent else "moving"
        rows.append((row["version"], row["holder"], row["host"], seen))
    table = Table(
        form=LEASE_FORM, header=("version", "reader", "host", "sign of life"), rows=rows, titled=False
    )
    return body, [table] if rows else "no leases", 0


RETIRE = Verb(text="take a version out of use", run=run_retire, arguments=_retire_arguments)
HOLD = Verb(
    text="keep the bytes of versions, even if they are retired",
    verbs={
        "add": Verb(text="hold a version", run=add_hold, arguments=_why),
        "release": Verb(text="release a hold on a version", run=release_hold, arguments=_whose),
        "ls": Verb(text="list holds, holders and reasons", run=ls_hold),
    },
)
LEASE = Verb(
    text="list leases of readers",
    verbs={
        "ls": Verb(
            text="list readers by version, and whether they are alive",
            run=ls_lease,
            arguments=_lease_arguments,
        )
    },
)
