"""`penstock ls`: what is under a root."""

from argparse import ArgumentParser, Namespace
from typing import Any

import loader

from ..console.table import Table
from .verb import Answer, Verb

FORM = ("{:<24}", " {}", "  {}")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("dataset", nargs="?", help="only this dataset")


def run(arguments: Namespace) -> Answer:
    """List datasets, their versions, tags, aliases and holds."""
    root = loader.Root(arguments.root)
    state = root.state
    names = [arguments.dataset] if arguments.dataset else root.datasets()
    body: list[dict[str, Any]] = []
    rows = []
    for name in names:
        refs: dict[int, list[str]] = {}
        for (dataset, ref), target in state.refs.items():
            if dataset == name:
                refs.setdefault(target.number, []).append(ref)
        for record in root.versions(name):
            named = sorted(refs.get(record.number, []))
            holds = state.holds_of(name, record.number)
            body.append(
                {
                    "name": record.name,
                    "id": record.id,
                    "retired": record.retired,
                    "refs": list(named),
                    "holds": [{"by": one.by, "why": one.why} for one in holds],
                }
            )
            named += [f"(held by {one.by}: {one.why})" for one in holds]
            if record.retired is not None:
                named.append(f"(retired: {record.retired})")
            rows.append([record.name, record.id[:18], *([" ".join(named)] if named else [])])
    table = Table(form=FORM, header=("version", "id", "names, holds"), rows=rows, titled=False)
    return body, [table] if rows else f"{root.url} has no versions yet", 0


VERB = Verb(text="datasets and versions", run=run, arguments=arguments)
