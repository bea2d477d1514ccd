"""`penstock lease ls`."""

from argparse import Namespace

import loader

from .verb import Answer, Verb


def ls(arguments: Namespace) -> Answer:
    """Who holds which version open."""
    from loader.dataset.heartbeat import list_leases

    root = loader.Root(arguments.root)
    names = {record.id: record.name for dataset in root.datasets() for record in root.versions(dataset)}
    found = list(list_leases(root.store))
    body = [{"version": names.get(one.version_id, one.version_id), "holder": one.holder} for one in found]
    return body, "\n".join(f"{row['version']:<24} {row['holder']}" for row in body) or "no leases", 0


VERB = Verb(text="leases of readers", verbs={"ls": Verb(text="who is reading which version", run=ls)})
