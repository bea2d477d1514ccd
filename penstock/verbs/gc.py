"""`penstock gc|retire|hold|lease`: which versions stay in use; delete objects that none needs."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import loader
from loader.errors import InvalidRuntime

from ..units import utc_us
from .verb import Answer, Table, Verb, read_by


def _collection_arguments(parser: ArgumentParser) -> None:
    from ..units import parse_length

    for name, what in (
        ("grace", "how long an object stays condemned before it is deleted"),
        ("silence", "how long a silent writer or reader counts as alive"),
    ):
        parser.add_argument(
            f"--{name}",
            type=read_by(parse_length),
            default=72 * 3600.0,
            metavar="72h",
            help=f"{what} (default: 72h)",
        )
    parser.add_argument(
        "--collector",
        default=None,
        metavar="NAME",
        help="name of the collector's notes, one per clock (default: this host's)",
    )
    parser.add_argument(
        "--give-up",
        action="append",
        default=[],
        metavar="REF",
        help="retired version to delete, whatever tags, aliases or leases it has; may be repeated",
    )
    parser.add_argument(
        "--price",
        type=float,
        default=None,
        metavar="USD",
        help="price per GiB and month (default: list price)",
    )


def _sweep_arguments(parser: ArgumentParser) -> None:
    from ..units import parse_size

    _collection_arguments(parser)
    parser.add_argument(
        "--apply", action="store_true", help="delete; without it nothing is deleted or aborted"
    )
    parser.add_argument("--dataset", default=None, help="only objects of this dataset")
    parser.add_argument(
        "--max-objects",
        type=int,
        default=100_000,
        metavar="N",
        help="most objects to delete (default: 100000)",
    )
    parser.add_argument(
        "--max-bytes",
        type=read_by(parse_size),
        default=10 * 2**40,
        metavar="SIZE",
        help="most bytes to delete (default: 10TiB)",
    )


def _retire_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("dataset")
    parser.add_argument("--keep-last", type=int, required=True, metavar="K", help="the last K versions")
    parser.add_argument(
        "--keep-monthly", type=int, default=0, metavar="N", help="also the last one of each of N months"
    )
    parser.add_argument(
        "--keep-days", type=int, default=0, metavar="D", help="also versions younger than D days"
    )
    parser.add_argument("--apply", action="store_true", help="retire them; without it nothing is retired")


def _condemned(root: "loader.Root", given_up: Sequence[str]) -> set[str]:
    from ..denied.record import condemned

    ids = set(condemned(root.store, root.state.denies))
    for ref in given_up:
        record = root.record(ref, retired=True)
        if record.retired is None:
            raise InvalidRuntime(f"{record.name} is not retired and can still be read: retire it first")
        ids.add(record.id)
    return ids


def plan(arguments: Namespace) -> Answer:
    """List condemned objects with age and cost."""
    from ..upkeep.gc import Options, collect

    root = loader.Root(arguments.root)
    options = Options(
        name=arguments.collector,
        grace_s=arguments.grace,
        silence_s=arguments.silence,
        condemned=_condemned(root, arguments.give_up),
    )
    report = collect(root, options)
    return report.to_json(arguments.price), report.to_text(arguments.price), 0


def sweep(arguments: Namespace) -> Answer:
    """Delete objects condemned for the whole grace period. Exit status 1 if a deletion failed."""
    from ..upkeep.gc import Options, collect

    root = loader.Root(arguments.root)
    options = Options(
        name=arguments.collector,
        grace_s=arguments.grace,
        silence_s=arguments.silence,
        condemned=_condemned(root, arguments.give_up),
        max_objects=arguments.max_objects,
        max_bytes=arguments.max_bytes,
        dataset=arguments.dataset,
    )
    report = collect(root, options, apply=arguments.apply)
    text = f"{report.to_text(arguments.price)}\n{report.swept_text()}"
    return report.to_json(arguments.price), text, 1 if report.swept.n_refused else 0


def retire(arguments: Namespace) -> Answer:
    from ..upkeep.gc import Policy, retire_by_policy
    from ..upkeep.gc.clients import earliest_us, now, own_name, read_signs

    policy = Policy(last=arguments.keep_last, monthly=arguments.keep_monthly, days=arguments.keep_days)
    root = loader.Root(arguments.root)
    seen_at = read_signs(root.alone.store, own_name()).at
    now_us = earliest_us(seen_at, now())
    versions = retire_by_policy(root, arguments.dataset, policy, now_us=now_us, apply=arguments.apply)
    body = {"policy": str(policy), "applied": arguments.apply, "versions": [one.name for one in versions]}
    what = "retired" if arguments.apply else "would be retired; add --apply"
    return body, "\n".join(f"{one.name} {what}" for one in versions) or f"keep {policy}: nothing to retire", 0


VERB = Verb(
    text="delete objects that no version needs",
    verbs={
        "plan": Verb(
            text="list condemned objects, their ages and their cost",
            run=plan,
            arguments=_collection_arguments,
        ),
        "sweep": Verb(
            text="delete objects that were condemned for the whole grace",
            run=sweep,
            arguments=_sweep_arguments,
        ),
        "retire": Verb(text="retire versions by a retention policy", run=retire, arguments=_retire_arguments),
    },
)


def _retired_arguments(parser: ArgumentParser) -> None:
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
    """Exit with 2 without such a hold."""
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


RETIRE = Verb(text="take a version out of use", run=run_retire, arguments=_retired_arguments)
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
