"""`penstock lease ls`."""

from argparse import Namespace

import loader

from .verb import Answer, Verb


def ls(arguments: Namespace) -> Answer:
    """Who holds which version open."""
    from loader.dataset.lease import list_leases

    root = loader.Root(arguments.root)
    names = {record.id: record.name for dataset in root.datasets() for record in root.versions(dataset)}
    body = [
        {"version": names.get(id, id), "holder": one.holder, "host": one.host, "beat": one.beat}
        for one in list_leases(root.store)
        for id in one.versions
    ]
    body.sort(key=lambda row: (row["version"], row["holder"]))
    lines = [f"{row['version']:<24} {row['holder']} on {row['host']}" for row in body]
    return body, "\n".join(lines) or "no leases", 0


VERB = Verb(text="leases of readers", verbs={"ls": Verb(text="who is reading which version", run=ls)})
