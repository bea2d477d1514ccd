"""What each verb of the command line does: (arguments) -> (JSON-ready body, text, exit status)."""

from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import loader

from . import diff as _diff
from . import verify as _verify
from .words import size

Answer = tuple[Any, str, int]


def ls(arguments: Namespace) -> Answer:
    """Datasets, their versions, tags and aliases."""
    root = loader.Root(arguments.root)
    state = root.state
    names = [arguments.dataset] if arguments.dataset else root.datasets()
    body, lines = [], []
    for name in names:
        refs: dict[int, list[str]] = {}
        for (dataset, ref), target in state.refs.items():
            if dataset == name:
                refs.setdefault(target.number, []).append(ref)
        for record in root.versions(name):
            named = sorted(refs.get(record.number, []))
            body.append(
                {"name": record.name, "id": record.id, "retired": record.retired, "refs": list(named)}
            )
            if record.retired is not None:
                named.append(f"(retired: {record.retired})")
            lines.append(f"{record.name:<24} {record.id[:18]}  {' '.join(named)}".rstrip())
    return body, "\n".join(lines) or f"{root.url} has no versions yet", 0


def show(arguments: Namespace) -> Answer:
    """One version."""
    version = loader.Root(arguments.root).open(arguments.ref)
    manifest = version.manifest
    created = datetime.fromtimestamp(manifest["created_us"] / 1e6, UTC)
    lines = [
        f"{version.name}  {version.id}",
        f"created {created:%Y-%m-%d %H:%M:%S} UTC, parent {manifest['parent'] or 'none'}",
        f"{len(version)} samples ({manifest['n_rows'] - len(version)} excluded) in {manifest['n_parts']} parts",
        "",
        f"{'group':<16} {'samples':>10} {'parts':>7} {'bytes':>10}  fields",
    ]
    for name, group in manifest["groups"].items():
        fields = ", ".join(sorted(group["field_nbytes"]))
        lines.append(
            f"{name:<16} {group['n_rows']:>10} {group['n_parts']:>7} {size(group['nbytes']):>10}  {fields}"
        )
    lines += ["", f"{'column':<24} type"]
    lines += [
        f"{name:<24} {column['type']}"
        for name, column in manifest["columns"].items()
        if column["type"] != "null"
    ]
    if manifest["producer"]:
        lines += ["", *(f"{name}: {value}" for name, value in manifest["producer"].items())]
    body = {"name": version.name, "id": version.id, "fields": list(version.fields), "manifest": manifest}
    return body, "\n".join(lines), 0


def diff(arguments: Namespace) -> Answer:
    """What changes from a to b."""
    root = loader.Root(arguments.root)
    found = _diff.diff(root.open(arguments.a), root.open(arguments.b))
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


def verify(arguments: Namespace) -> Answer:
    """Exit status 1 when anything is wrong."""
    report = _verify.verify(loader.Root(arguments.root), arguments.ref, full=arguments.full)
    problems = report.problems or []
    how = "every byte" if report.full else "tables, sizes and indexes (--full reads every byte)"
    lines = [f"{problem.address}: {problem.what}" for problem in problems]
    lines.append(
        f"{report.version}: {report.shards} shards, {report.rows} rows, {size(report.nbytes)}; checked {how}: "
        + (f"{len(problems)} problems" if problems else "nothing wrong")
    )
    return report.to_json(), "\n".join(lines), 1 if problems else 0


def order(arguments: Namespace) -> Answer:
    """The planned batch of a step over one version; the source has the dataset's name."""
    version = loader.Root(arguments.root).open(arguments.ref)
    plan = loader.plan(  # which fields are read changes no order
        {version.dataset: version.select(*_fields_of_all(version))},
        seed=arguments.seed,
        global_batch=arguments.batch,
        allow_repeats=True,
    )
    ids = list(enumerate(plan.batch_ids(arguments.step)))
    if arguments.world is not None or arguments.rank is not None:
        from loader.order.assign import rank_slice
        from loader.run.world import World

        world = World.of(arguments.rank, arguments.world)
        ids = ids[rank_slice(arguments.batch, world.rank, world.world_size)]
    body = {
        "plan": plan.hash,
        "step": arguments.step,
        "ids": [[slot, source, key] for slot, (source, key) in ids],
    }
    return body, "\n".join(f"{slot:>6}  {source}  {key}" for slot, (source, key) in ids), 0


def _fields_of_all(version: loader.Version) -> list[str]:
    """Fields of the groups that every part has: those of another would leave samples out."""
    groups = version.manifest["groups"].values()
    whole = [group for group in groups if group["n_parts"] == version.manifest["n_parts"]]
    return [field for group in whole for field in group["field_nbytes"]]


def bench(arguments: Namespace) -> Answer:
    """How fast a version can be loaded here, and what limits."""
    from .bench import bench as measure

    version = loader.Root(arguments.root).open(arguments.ref)
    fields = arguments.fields.split(",") if arguments.fields else _fields_of_all(version)
    found = measure(
        version, fields, batch=arguments.batch, seconds=arguments.seconds, workers=arguments.workers
    )
    return found.to_json(), found.to_text(), 0


def explain(arguments: Namespace) -> Answer:
    """Where the samples of a step come from."""
    root = loader.Root(arguments.root)
    plan = loader.open_plan(root, arguments.plan)
    found = loader.explain(plan, arguments.step, arguments.rank, arguments.world, arguments.slot)
    return [one.to_json() for one in found], "\n\n".join(map(str, found)), 0


def card(arguments: Namespace) -> Answer:
    """The dataset card: as Markdown, or written where the arguments say."""
    from .card.build import EXAMPLES, build_card
    from .card.document import card_document
    from .card.markdown import render_markdown
    from .card.stored import save_card, write_card, write_html

    n_examples = EXAMPLES if arguments.examples is None else arguments.examples
    root = loader.Root(arguments.root)
    made = build_card(root, root.open(arguments.ref), n_examples=n_examples)
    lines = []
    if arguments.html is not None:
        lines.append(str(write_html(Path(arguments.html), made)))
    if arguments.into is not None:
        lines += map(str, write_card(Path(arguments.into), made))
    if arguments.save:
        saved = save_card(root.store, made)
        lines += [f"{root.url}/{saved.folder}/{name}" for name in saved.written]
        lines += [f"{root.url}/{saved.folder}/{name} is another card and was kept" for name in saved.kept]
    return card_document(made), "\n".join(lines) or render_markdown(made).rstrip("\n"), 0


def retire(arguments: Namespace) -> Answer:
    """The version can no longer be opened."""
    root = loader.Root(arguments.root)
    record = root.record(arguments.ref, retired=True)
    root.retire(arguments.ref, reason=arguments.reason)
    return {"name": record.name, "id": record.id}, f"{record.name} is retired: {arguments.reason}", 0


def lease(arguments: Namespace) -> Answer:
    """Who holds which version open."""
    from loader.dataset.heartbeat import list_leases

    root = loader.Root(arguments.root)
    names = {record.id: record.name for dataset in root.datasets() for record in root.versions(dataset)}
    found = list(list_leases(root.store))
    body = [{"version": names.get(one.version_id, one.version_id), "holder": one.holder} for one in found]
    return body, "\n".join(f"{row['version']:<24} {row['holder']}" for row in body) or "no leases", 0
