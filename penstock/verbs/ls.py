"""`penstock ls`: the datasets and versions under a root."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import PenstockError

from ..console.table import Table
from ..units import minute, size
from .verb import Answer, Verb

if TYPE_CHECKING:
    from loader.dataset.log.state import VersionRecord

HEADER = ("version", "id", "created (UTC)", "samples", "bytes", "names, holds")
FORM = ("{:<24}", " {:<18}", "  {:<16}", " {:>12}", " {:>10}", "  {}")
READ_AHEAD = 16
"""Manifests that are read at once."""


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("dataset", nargs="?", help="only this dataset")


def run(arguments: Namespace) -> Answer:
    """List datasets, their versions, tags, aliases and holds. Costs a request per version."""
    root = loader.Root(arguments.root)
    state = root.state
    names = [arguments.dataset] if arguments.dataset else root.datasets()
    records = [record for name in names for record in root.versions(name)]
    with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-ls") as pool:
        contents = list(pool.map(partial(_content, root), records))
    refs: dict[tuple[str, int], list[str]] = {}
    for (dataset, ref), target in state.refs.items():
        refs.setdefault((dataset, target.number), []).append(ref)
    body: list[dict[str, Any]] = []
    rows = []
    for record, content in zip(records, contents, strict=True):
        named = sorted(refs.get((record.dataset, record.number), []))
        holds = state.holds_of(record.dataset, record.number)
        body.append(
            {
                "name": record.name,
                "id": record.id,
                "retired": record.retired,
                "refs": list(named),
                "holds": [{"by": one.by, "why": one.why} for one in holds],
                **content,
            }
        )
        named += [f"(held by {one.by}: {one.why})" for one in holds]
        if record.retired is not None:
            named.append(f"(retired: {record.retired})")
        rows.append([record.name, record.id[:18], *_cells(content), *([" ".join(named)] if named else [])])
    table = Table(form=FORM, header=HEADER, rows=rows, titled=False)
    return body, [table] if rows else f"{root.url} has no versions yet", 0


def _content(root: "loader.Root", record: "VersionRecord") -> Mapping[str, int | None]:
    """Return facts of a version's manifest; None for each where it cannot be read, as of a version that was swept."""
    from loader.dataset.tables.manifest import read_manifest

    try:
        manifest = read_manifest(root.store, record.manifest, record.sha256)
    except PenstockError:
        return dict.fromkeys(("created_us", "samples", "nbytes"))
    nbytes = sum(group["nbytes"] for group in manifest["groups"].values())
    return {"created_us": manifest["created_us"], "samples": manifest["n_live"], "nbytes": nbytes}


def _cells(content: Mapping[str, int | None]) -> tuple[str, str, str]:
    """Return the time, number and bytes as people read them."""
    created_us, samples, nbytes = content["created_us"], content["samples"], content["nbytes"]
    if created_us is None or samples is None or nbytes is None:
        return "-", "-", "-"
    return minute(created_us), f"{samples:,}", size(nbytes)


VERB = Verb(text="datasets and versions: when, how many samples, bytes, names", run=run, arguments=arguments)
