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
    """List the readers of each version: the age of their last beat, and what a collector has seen of them.

    The age is by the clocks of the store and of this machine, for people. A collector counts on its own clock, and its
    count begins when it first sees a beat, not when the reader made it.
    """
    import time

    from loader.dataset.leases import FOLDER, list_leases

    from ..units import length
    from ..upkeep.gc.clients import check_name, own_name, read_signs, silent_s
    from ..upkeep.gc.clock import now

    root = loader.Root(arguments.root)
    names = {record.id: record.name for dataset in root.datasets() for record in root.versions(dataset)}
    signs = read_signs(root.store, check_name(arguments.collector or own_name()))
    at, wall_us = now(), time.time_ns() // 1000
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
            seen += "no collector has looked yet"
        else:
            seen += f"unchanged for at least {length(float(str(silent)))}" if silent else "moving"
        rows.append((row["version"], row["holder"], row["host"], seen))
    table = Table(form=FORM, header=("version", "reader", "host", "sign of life"), rows=rows, titled=False)
    return body, [table] if rows else "no leases", 0


VERB = Verb(
    text="leases of readers",
    verbs={"ls": Verb(text="who is reading which version, and is it alive", run=ls, arguments=arguments)},
)
