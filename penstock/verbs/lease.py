"""`penstock lease ls`."""

from argparse import ArgumentParser, Namespace

import loader

from ..console.table import Table
from .verb import Answer, Verb

FORM = ("{:<24}", " {}", " on {}", ", {}")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "--collector", default=None, metavar="NAME", help="whose notes tell the age (default: this host's)"
    )


def ls(arguments: Namespace) -> Answer:
    """List who holds which version open, and for how long no sign of life was seen."""
    from loader.dataset.leases.lease import list_leases

    from ..gc.clients import check_name, own_name, read_signs, silent_s
    from ..gc.clock import now
    from ..units import length

    root = loader.Root(arguments.root)
    names = {record.id: record.name for dataset in root.datasets() for record in root.versions(dataset)}
    signs = read_signs(root.store, check_name(arguments.collector or own_name()))
    at = now()
    body = [
        {
            "version": names.get(id, id),
            "holder": one.holder,
            "host": one.host,
            "beat": one.beat,
            "silent_s": silent_s(signs, one, at),
        }
        for one in list_leases(root.store)
        for id in one.versions
    ]
    body.sort(key=lambda row: (str(row["version"]), str(row["holder"])))
    rows = []
    for row in body:
        silent = row["silent_s"]
        seen = (
            "not looked at yet"
            if silent is None
            else f"moved {length(float(str(silent)))} ago"
            if silent
            else "moving"
        )
        rows.append((row["version"], row["holder"], row["host"], seen))
    table = Table(form=FORM, header=("version", "reader", "host", "sign of life"), rows=rows, titled=False)
    return body, [table] if rows else "no leases", 0


VERB = Verb(
    text="leases of readers",
    verbs={"ls": Verb(text="who is reading which version, and is it alive", run=ls, arguments=arguments)},
)
