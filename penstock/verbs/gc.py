"""`penstock gc|retire|hold|lease`: which versions stay in use; delete objects that none needs."""

from argparse import Namespace
from typing import Any

import loader
from loader.errors import InvalidRuntime

from ..units import length, parse_length, parse_size, utc_us
from .verb import REF, Answer, Table, Verb, argument, argument_type, flag, list_option, verb

_COLLECTION = (
    argument(
        "--grace 72h",
        "how long an object stays condemned before it is deleted (default: 72h)",
        type=argument_type(parse_length),
        default=72 * 3600.0,
    ),
    argument(
        "--silence 72h",
        "how long a silent writer or reader counts as alive (default: 72h)",
        type=argument_type(parse_length),
        default=72 * 3600.0,
    ),
    argument("--collector NAME", "name of the collector's notes, one per clock (default: this host's)"),
    list_option("--give-up REF", "retired version to delete, whatever tags, aliases or leases it has"),
    argument("--price USD", "price per GiB and month (default: list price)", type=float),
)


def _limits(root: "loader.Root", arguments: Namespace) -> dict[str, Any]:
    from ..denied.record import condemned_versions

    # A takedown's versions are given up too: it rewrote them, and their old bytes must go.
    ids = set(condemned_versions(root.store, root.state.denies))
    for ref in arguments.give_up:
        record = root.record(ref, retired=True)
        if record.retired is None:
            raise InvalidRuntime(f"{record.name} is not retired and can still be read: retire it first")
        ids.add(record.id)
    return {
        "name": arguments.collector,
        "grace_s": arguments.grace,
        "silence_s": arguments.silence,
        "condemned": ids,
    }


@verb("list condemned objects, their ages and their cost", *_COLLECTION)
def plan(arguments: Namespace) -> Answer:
    from ..upkeep.gc import Options, collect

    root = loader.Root(arguments.root)
    report = collect(root, Options(**_limits(root, arguments)))
    return report.to_json(arguments.price), report.to_text(arguments.price), 0


@verb(
    "delete objects that were condemned for the whole grace",
    *_COLLECTION,
    flag("--apply", "delete; without it nothing is deleted or aborted"),
    argument("--dataset", "only objects of this dataset"),
    argument("--max-objects N", "most objects to delete (default: 100000)", type=int, default=100_000),
    argument(
        "--max-bytes SIZE",
        "most bytes to delete (default: 10TiB)",
        type=argument_type(parse_size),
        default=10 * 2**40,
    ),
)
def sweep(arguments: Namespace) -> Answer:
    """Delete objects condemned for the whole grace period. Exit status 1 if a deletion failed."""
    from ..upkeep.gc import Options, collect

    root = loader.Root(arguments.root)
    most = {"max_objects": arguments.max_objects, "max_bytes": arguments.max_bytes}
    options = Options(**_limits(root, arguments), **most, dataset=arguments.dataset)
    report = collect(root, options, apply=arguments.apply)
    text = f"{report.to_text(arguments.price)}\n{report.sweep_text()}"
    return report.to_json(arguments.price), text, 1 if report.swept.n_refused else 0


@verb(
    "retire versions by a retention policy",
    argument("dataset"),
    argument("--keep-last K", "the last K versions", type=int, required=True),
    argument("--keep-monthly N", "also the last one of each of N months", type=int, default=0),
    argument("--keep-days D", "also versions younger than D days", type=int, default=0),
    flag("--apply", "retire them; without it nothing is retired"),
)
def retire(arguments: Namespace) -> Answer:
    from ..upkeep.gc import Policy, retire_by_policy
    from ..upkeep.gc.clients import earliest_us, now, own_name, read_signs

    policy = Policy(last=arguments.keep_last, monthly=arguments.keep_monthly, days=arguments.keep_days)
    root = loader.Root(arguments.root)
    # A clock that was set forward would make versions older than --keep-days allows.
    seen_at = read_signs(root.alone.store, own_name()).at
    now_us = earliest_us(seen_at, now())
    versions = retire_by_policy(root, arguments.dataset, policy, now_us=now_us, apply=arguments.apply)
    body = {"policy": str(policy), "applied": arguments.apply, "versions": [one.name for one in versions]}
    what = "retired" if arguments.apply else "would be retired; add --apply"
    return body, "\n".join(f"{one.name} {what}" for one in versions) or f"keep {policy}: nothing to retire", 0


VERB = Verb(
    text="delete objects that no version needs", verbs={"plan": plan, "sweep": sweep, "retire": retire}
)


@verb("take a version out of use", REF, argument("--reason", required=True))
def run_retire(arguments: Namespace) -> Answer:
    root = loader.Root(arguments.root)
    record = root.record(arguments.ref, retired=True)
    root.retire(arguments.ref, reason=arguments.reason)
    return {"name": record.name, "id": record.id}, f"{record.name} is retired: {arguments.reason}", 0


HOLD_FORM = ("{:<24}", " {}", ": {}")
_WHOSE = (REF, argument("--by", "holder: a person, a job or a legal matter", required=True))


@verb("hold a version", *_WHOSE, argument("--why", required=True))
def add_hold(arguments: Namespace) -> Answer:
    """Hold a version: no collector deletes its bytes, and no policy retires it."""
    root = loader.Root(arguments.root)
    root.hold(arguments.ref, by=arguments.by, why=arguments.why)
    record = root.record(arguments.ref)
    # A second hold by the same holder keeps the first one's reason, so the answer shows the recorded one.
    (held,) = (
        one for one in root.state.version_holds(record.dataset, record.number) if one.by == arguments.by
    )
    body = {"version": record.name, "id": record.id, "by": held.by, "why": held.why}
    return body, f"{record.name} held by {held.by}: {held.why}", 0


@verb("release a hold on a version", *_WHOSE)
def release_hold(arguments: Namespace) -> Answer:
    """Exit with 2 without such a hold."""
    root = loader.Root(arguments.root)
    record = root.record(arguments.ref, retired=True)
    done = root.release(arguments.ref, by=arguments.by)
    text = f"{record.name} is no longer held by {arguments.by}"
    if not done:
        holders = [one.by for one in root.state.version_holds(record.dataset, record.number)]
        text = f"{arguments.by} does not hold {record.name}; holders: {', '.join(holders) or 'none'}"
    return {"version": record.name, "id": record.id, "released": done}, text, 0 if done else 2


@verb("list holds, holders and reasons")
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


@verb(
    "list readers by version, and whether they are alive",
    argument("--collector NAME", "collector whose notes give the age (default: this host's)"),
)
def ls_lease(arguments: Namespace) -> Answer:
    """List versions' readers, with their last heartbeat's age and how long a collector saw no change.

    The age compares the store's clock with this machine's. A collector measures on its own clock.
    """

    from loader.dataset.log.leases import FOLDER, list_leases

    from ..upkeep.gc.clients import check_name, now, own_name, read_signs, silent_s

    root = loader.Root(arguments.root)
    names = {record.id: record.name for dataset in root.datasets() for record in root.versions(dataset)}
    signs = read_signs(root.store, check_name(arguments.collector or own_name()))
    at = now()
    # The store's clock sets `modified_us`; this machine's may be behind it, hence the 0 below.
    wall_us = utc_us()
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
        age = row["beat_age_s"]
        silent = row["silent_s"]
        seen = ""
        if age is not None:
            seen = f"last beat {length(float(str(age)))} ago, "
        if silent is None:
            seen += "not seen by a collector yet"
        else:
            seen += f"unchanged for at least {length(float(str(silent)))}" if silent else "moving"
        rows.append((row["version"], row["holder"], row["host"], seen))
    table = Table(
        form=LEASE_FORM, header=("version", "reader", "host", "sign of life"), rows=rows, titled=False
    )
    return body, [table] if rows else "no leases", 0


HOLD = Verb(
    text="keep the bytes of versions, even if they are retired",
    verbs={"add": add_hold, "release": release_hold, "ls": ls_hold},
)
LEASE = Verb(
    text="list leases of readers",
    verbs={"ls": ls_lease},
)
