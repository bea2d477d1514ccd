"""`penstock gc plan|sweep|retire`: delete objects that no version needs."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import loader
from loader.errors import InvalidRuntime

from .verb import Answer, Verb, read_by


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
