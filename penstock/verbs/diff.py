"""`penstock diff A B`."""

from argparse import ArgumentParser, Namespace
from typing import Any

import loader

from ..units import size
from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("a", help="e.g. photos@2")
    parser.add_argument("b", help="e.g. photos@3")


def run(arguments: Namespace) -> Answer:
    """Show the changes from a to b."""
    from ..upkeep.diff import diff

    root = loader.Root(arguments.root)
    found = diff(root.open(arguments.a), root.open(arguments.b))
    lines = [
        f"{found.a} -> {found.b}",
        f"samples   {found.samples[0]} -> {found.samples[1]}   excluded {found.excluded[0]} -> {found.excluded[1]}",
        f"bytes     {size(found.nbytes[0])} -> {size(found.nbytes[1])}",
        f"parts     +{len(found.parts_added)} -{len(found.parts_removed)}",
    ]
    lines += [f"group     +{name} ({', '.join(fields)})" for name, fields in found.groups_added.items()]
    lines += [f"group     -{name} ({', '.join(fields)})" for name, fields in found.groups_removed.items()]
    lines += [f"group     {name} covers {a} -> {b} samples" for name, (a, b) in found.coverage.items()]
    for name, (a, b) in found.columns.items():
        lines.append(f"column    {name}: {_stats(a)} -> {_stats(b)}")
    return found.to_json(), "\n".join(lines), 0


def _stats(row: dict[str, Any] | None) -> str:
    if row is None:
        return "absent"
    shown = {name: row[name] for name in ("n", "nulls", "nans", "zeros") if row.get(name)}
    shown |= {name: f"{row[name]:.6g}" for name in ("min", "mean", "max") if row.get(name) is not None}
    if row.get("categories"):
        shown["categories"] = len(row["categories"])
    return " ".join(f"{name}={value}" for name, value in shown.items())


VERB = Verb(text="what changes from one version to another", run=run, arguments=arguments)
