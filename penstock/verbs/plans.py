"""`penstock plans ls`: the plans that are saved under a root."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

import loader

from ..console.table import Table
from ..units import minute
from .verb import Answer, Verb

HEADER = ("plan", "saved (UTC)", "batch", "seed", "sources")
FORM = ("{:<66}", "  {:<16}", " {:>7}", " {:>6}", "  {}")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("dataset", nargs="?", help="only plans that read versions of this dataset")


def ls(arguments: Namespace) -> Answer:
    """List saved plans, the newest first: the store's time, global batch, seed, and versions. A request per plan."""
    from loader.api.plan_of import saved_plans
    from loader.storage.mirror.store import primary_of

    root = loader.Root(arguments.root)
    names = {record.id: record.name for dataset in root.datasets() for record in root.versions(dataset)}
    if arguments.dataset:
        root.versions(arguments.dataset)  # which names the closest dataset where there is none
    body = []
    for info, plan in saved_plans(primary_of(root.store)):
        sources = {name: _source(names, one["view"]) for name, one in plan["sources"].items()}
        if arguments.dataset and not any(
            one["version"].partition("@")[0] == arguments.dataset for one in sources.values()
        ):
            continue
        body.append(
            {
                "plan": info.key.removeprefix("plans/").removesuffix(".json"),
                "saved_us": info.modified_us,
                "global_batch": plan["global_batch"],
                "seed": plan["seed"],
                "sources": sources,
            }
        )
    body.sort(key=lambda row: (-(row["saved_us"] or 0), row["plan"]))
    rows = [
        (
            row["plan"],
            "-" if (us := row["saved_us"]) is None else minute(us),
            row["global_batch"],
            row["seed"],
            ", ".join(_words(name, one) for name, one in row["sources"].items()),
        )
        for row in body
    ]
    return body, [Table(form=FORM, header=HEADER, rows=rows)] if rows else f"{root.url} has no saved plans", 0


def _source(names: Mapping[str, str], view: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version, fields and predicate of a plan's view; of a packed or listed one, those of its samples."""
    while "version" not in view and isinstance(inner := view.get("documents") or view.get("view"), Mapping):
        view = inner
    version = str(view.get("version", ""))
    return {
        "version": names.get(version, version or str(view.get("kind"))),
        "fields": list(view.get("fields", ())),
        "where": view.get("where"),
    }


def _words(name: str, source: Mapping[str, Any]) -> str:
    where = f" where {source['where']}" if source["where"] else ""
    return f"{name}: {source['version']}{where}"


VERB = Verb(
    text="saved plans",
    verbs={"ls": Verb(text="what each reads, when it was saved", run=ls, arguments=arguments)},
)
