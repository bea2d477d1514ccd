"""`penstock show REF`: what a version is made of."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from datetime import UTC, datetime

import loader

from ..units import share, size
from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("ref", help="e.g. photos@3")


def run(arguments: Namespace) -> Answer:
    """One version."""
    from ..diff import column_statistics

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
        f"{'group':<16} {'samples':>10} {'parts':>7} {'bytes':>10}  fields",
    ]
    for name, group in manifest["groups"].items():
        fields = ", ".join(sorted(group["field_nbytes"]))
        lines.append(
            f"{name:<16} {group['n_rows']:>10} {group['n_parts']:>7} {size(group['nbytes']):>10}  {fields}"
        )
    statistics, total = column_statistics(version), manifest["n_rows"]
    present = {name: row["n"] - row["nulls"] for name, row in statistics.items()}
    lines += ["", f"{'column':<24} {'present':>10}  type"]
    lines += [
        f"{name:<24} {share(present[name], total):>10}  {column['type']}"
        for name, column in manifest["columns"].items()
        if column["type"] != "null"
    ]
    lines += _annotations(version)
    if manifest["producer"]:
        lines += ["", *(f"{name}: {value}" for name, value in manifest["producer"].items())]
    body = {
        "name": version.name,
        "id": version.id,
        "fields": list(version.fields),
        "holds": [{"by": one.by, "why": one.why} for one in holds],
        "present": present,
        "annotations": [asdict(one) for one in version.annotations],
        "manifest": manifest,
    }
    return body, "\n".join(lines), 0


def _annotations(version: "loader.Version") -> list[str]:
    """Who annotated what, and when."""
    lines = (
        ["", f"{'annotation':<16} {'samples':>10}  {'when (UTC)':<19}  columns, by whom"]
        if version.annotations
        else []
    )
    for one in version.annotations:
        when = datetime.fromtimestamp(one.at_us / 1e6, UTC)
        lines.append(
            f"{one.name:<16} {one.n_samples:>10}  {when:%Y-%m-%d %H:%M:%S}  {', '.join(one.columns)}, by {one.author}"
        )
    return lines


VERB = Verb(text="one version: fields, groups, columns, parts", run=run, arguments=arguments)
