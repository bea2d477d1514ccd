"""`penstock show REF`: what a version is made of."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from datetime import UTC, datetime

import loader

from ..console.table import Table
from ..units import share, size
from .verb import Answer, Verb, fields_of_all, kinds

GROUP_HEADER = ("group", "samples", "parts", "bytes", "fields")
GROUPS = ("{:<16}", " {:>10}", " {:>7}", " {:>10}", "  {}")
KINDS = ("{:<40}", " {:>10}")
COLUMNS = ("{:<24}", " {:>10}", "  {}")
ANNOTATION_HEADER = ("annotation", "samples", "when (UTC)", "columns", "by whom")
ANNOTATIONS = ("{:<16}", " {:>10}", "  {:<19}", "  {}", ", {}")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@3")


def run(arguments: Namespace) -> Answer:
    """Show one version."""
    from ..upkeep.diff import column_statistics

    root = loader.Root(arguments.root)
    version = root.open(arguments.ref)
    manifest = version.manifest
    holds = root.state.holds_of(version.dataset, version.number)
    created = datetime.fromtimestamp(manifest["created_us"] / 1e6, UTC)
    lines = [
        f"{version.name}  {version.id}",
        f"created {created:%Y-%m-%d %H:%M:%S} UTC, parent {manifest['parent'] or 'none'}",
        f"{len(version)} samples ({manifest['n_rows'] - len(version)} excluded) in {manifest['n_parts']} parts",
        *(f"held by {one.by}: {one.why}" for one in holds),
        "",
    ]
    groups = [
        (
            name,
            group["n_rows"],
            group["n_parts"],
            size(group["nbytes"]),
            ", ".join(sorted(group["field_nbytes"])),
        )
        for name, group in manifest["groups"].items()
    ]
    text: list[str | Table] = [*lines, Table(form=GROUPS, header=GROUP_HEADER, rows=groups)]
    found = [] if fields_of_all(version) else kinds(version)
    if len(found) > 1:
        selected = [(kind.option, kind.n_samples) for kind in found]
        text += ["", Table(form=KINDS, header=("order, bench: select one kind by", "samples"), rows=selected)]
    statistics, total = column_statistics(version), manifest["n_rows"]
    present = {name: row["n"] - row["nulls"] for name, row in statistics.items()}
    columns = [
        (name, share(present[name], total), column["type"])
        for name, column in manifest["columns"].items()
        if column["type"] != "null"
    ]
    text += ["", Table(form=COLUMNS, header=("column", "present", "type"), rows=columns)]
    text += _annotations(version)
    if manifest["producer"]:
        text += ["", *(f"{name}: {value}" for name, value in manifest["producer"].items())]
    body = {
        "name": version.name,
        "id": version.id,
        "fields": list(version.fields),
        "kinds": [{"fields": kind.fields, "samples": kind.n_samples} for kind in found],
        "holds": [{"by": one.by, "why": one.why} for one in holds],
        "present": present,
        "annotations": [asdict(one) for one in version.annotations],
        "manifest": manifest,
    }
    return body, text, 0


def _annotations(version: "loader.Version") -> list[str | Table]:
    """Return a table of who annotated what, and when; nothing without annotations."""
    rows = [
        (
            *(one.name, one.n_samples, f"{datetime.fromtimestamp(one.at_us / 1e6, UTC):%Y-%m-%d %H:%M:%S}"),
            *(", ".join(one.columns), f"by {one.author}"),
        )
        for one in version.annotations
    ]
    return ["", Table(form=ANNOTATIONS, header=ANNOTATION_HEADER, rows=rows)] if rows else []


VERB = Verb(text="one version: fields, groups, columns, parts", run=run, arguments=arguments)
