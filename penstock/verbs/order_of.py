"""`penstock order-of seen REF --seen keys.txt`: the rest of an epoch that was begun elsewhere, as a list."""

from argparse import ArgumentParser, Namespace

import loader

from .verb import Answer, Verb, add_fields, choose_fields, key_lines


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `order-of seen`."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument(
        "--seen",
        required=True,
        metavar="FILE",
        help="file with a key per line, of samples that were read; - is standard input",
    )
    parser.add_argument(
        "--by",
        choices=("key", "source_key"),
        default="key",
        help="column that has these keys: the version's own, or source_key, the one that the sample had before",
    )
    parser.add_argument("--where", default=None, help="SQL expression: samples of the training")
    parser.add_argument("--seed", type=int, default=0, help="of the order of those that are left")
    add_fields(parser)


def run(arguments: Namespace) -> Answer:
    """Store the list of the samples that are left."""
    from ..sources.foreign_orders import left_over, ordinals_of

    version = loader.Root(arguments.root).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    view = version.select(*fields, where_present=where_present)
    if arguments.where:
        view = view.where(arguments.where)
    keys = list(key_lines("--seen", arguments.seen))
    seen = ordinals_of(version, keys, arguments.by)
    made = loader.listed(view, left_over(view, seen, arguments.seed))
    excluded = int((seen < 0).sum())
    body = {
        "version": version.name,
        "list": made.list_sha256,
        "view": made.id,
        "samples": len(made),
        "of": len(view),
        "seen": len(keys),
        "seen_excluded": excluded,
    }
    lines = [
        f"list {made.list_sha256}",
        f"{len(made)} of {len(view)} samples of {version.name} are left; {len(keys)} keys were seen, of samples that "
        f"{version.name} excludes {excluded}",
        f'open it as loader.listed(view, "{made.list_sha256}")',
    ]
    return body, "\n".join(lines), 0


VERB = Verb(
    text="the rest of an epoch that was begun elsewhere",
    verbs={
        "seen": Verb(text="what a file of keys leaves of an epoch, as a list", run=run, arguments=arguments)
    },
)
