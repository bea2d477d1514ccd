"""`penstock ls|show|diff|digest|pack|overlap|card|bench`: versions and their content."""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime, PenstockError
from loader.storage.threads import DaemonPool

from ..units import minute, number, second, share, size
from .verb import (
    FIELDS,
    HASH_CHARS,
    REF,
    Answer,
    Table,
    argument,
    choose_fields,
    fields_of_all,
    flag,
    kinds,
    list_option,
    report_answer,
    verb,
    workers_argument,
)

if TYPE_CHECKING:
    from loader.dataset.log.state import VersionRecord

    from ..bench import Bench, Rate


LS_HEADER = ("version", "id", "created (UTC)", "samples", "bytes", "names, holds")
LS_FORM = ("{:<24}", " {:<18}", "  {:<16}", " {:>12}", " {:>10}", "  {}")
READ_AHEAD = 16
"""Manifests to read concurrently."""


@verb(
    "list datasets and versions: time, samples, bytes, names",
    argument("dataset", "only this dataset", nargs="?"),
)
def run_ls(arguments: Namespace) -> Answer:
    """List datasets, versions, tags, aliases and holds. Costs a request per version."""
    root = loader.Root(arguments.root)
    state = root.state
    names = [arguments.dataset] if arguments.dataset else root.datasets()
    records = [record for name in names for record in root.versions(name)]
    with DaemonPool(READ_AHEAD, "penstock-ls") as pool:
        contents = list(pool.map(partial(_content, root), records))
    refs: dict[tuple[str, int], list[str]] = {}
    for (dataset, ref), target in state.refs.items():
        refs.setdefault((dataset, target.number), []).append(ref)
    body: list[dict[str, Any]] = []
    rows = []
    for record, content in zip(records, contents, strict=True):
        named = sorted(refs.get((record.dataset, record.number), []))
        holds = state.version_holds(record.dataset, record.number)
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
        row = [record.name, record.id[:HASH_CHARS], *_cells(content)]
        if named:
            row.append(" ".join(named))
        rows.append(row)
    table = Table(form=LS_FORM, header=LS_HEADER, rows=rows, titled=False)
    return body, [table] if rows else f"{root.url} has no versions yet", 0


def _content(root: "loader.Root", record: "VersionRecord") -> Mapping[str, int | None]:
    from loader.dataset.tables.manifest import read_manifest

    try:
        manifest = read_manifest(root.store, record.manifest, record.sha256)
    # A damaged manifest must not hide the other versions; `penstock verify` finds the damage.
    except PenstockError:
        return dict.fromkeys(("created_us", "samples", "nbytes"))
    nbytes = sum(group["nbytes"] for group in manifest["groups"].values())
    return {"created_us": manifest["created_us"], "samples": manifest["n_live"], "nbytes": nbytes}


def _cells(content: Mapping[str, int | None]) -> tuple[str, str, str]:
    created_us = content["created_us"]
    samples = content["samples"]
    nbytes = content["nbytes"]
    if created_us is None or samples is None or nbytes is None:
        return "-", "-", "-"
    return minute(created_us), f"{samples:,}", size(nbytes)


GROUP_HEADER = ("group", "samples", "parts", "bytes", "fields")
SHOW_GROUPS = ("{:<16}", " {:>10}", " {:>7}", " {:>10}", "  {}")
SHOW_KINDS = ("{:<40}", " {:>10}")
SHOW_COLUMNS = ("{:<24}", " {:>10}", "  {}")
ANNOTATION_HEADER = ("annotation", "samples", "when (UTC)", "columns", "by whom")
ANNOTATIONS = ("{:<16}", " {:>10}", "  {:<19}", "  {}", ", {}")


@verb("show a version: fields, groups, columns, parts", REF)
def run_show(arguments: Namespace) -> Answer:
    from ..view.inspect.version_contents import version_contents

    root = loader.Root(arguments.root)
    version = root.open(arguments.ref)
    manifest = version.manifest
    holds = root.state.version_holds(version.dataset, version.number)
    lines = [
        f"{version.name}  {version.id}",
        f"created {second(manifest['created_us'])} UTC, parent {manifest['parent'] or 'none'}",
        f"{len(version)} samples ({manifest['n_rows'] - len(version)} excluded) in {manifest['n_parts']} parts",
        *(f"held by {one.by}: {one.why}" for one in holds),
        "",
    ]
    contents = version_contents(version)
    groups = [
        (group.name, group.n_samples, group.n_parts, size(group.nbytes), ", ".join(group.fields))
        for group in contents.groups
    ]
    text: list[str | Table] = [*lines, Table(form=SHOW_GROUPS, header=GROUP_HEADER, rows=groups)]
    # With a field that all samples have, every command works without --fields.
    several = [] if fields_of_all(version) else kinds(version)
    if len(several) > 1:
        selected = [(kind.option, kind.n_samples) for kind in several]
        text += [
            "",
            Table(form=SHOW_KINDS, header=("order, bench: select one kind by", "samples"), rows=selected),
        ]
    columns = [
        (column.name, share(column.n_rows, contents.n_rows), column.type) for column in contents.columns
    ]
    text += ["", Table(form=SHOW_COLUMNS, header=("column", "present", "type"), rows=columns)]
    text += _annotations(version)
    if manifest["producer"]:
        text += ["", *(f"{name}: {value}" for name, value in manifest["producer"].items())]
    body = {
        "name": version.name,
        "id": version.id,
        "fields": list(version.fields),
        "kinds": [{"fields": kind.fields, "samples": kind.n_samples} for kind in several],
        "holds": [{"by": one.by, "why": one.why} for one in holds],
        "present": {column.name: column.n_rows for column in contents.columns},
        "annotations": [asdict(one) for one in version.annotations],
        "manifest": manifest,
    }
    return body, text, 0


def _annotations(version: "loader.Version") -> list[str | Table]:
    rows = [
        (
            *(one.name, one.n_samples, second(one.at_us)),
            *(", ".join(one.columns), f"by {one.author}"),
        )
        for one in version.annotations
    ]
    if rows:
        return ["", Table(form=ANNOTATIONS, header=ANNOTATION_HEADER, rows=rows)]
    return []


@verb(
    "show what changes from one version to another",
    argument("a", "e.g. photos@2"),
    argument("b", "e.g. photos@3"),
)
def run_diff(arguments: Namespace) -> Answer:
    from ..upkeep.diff import diff

    root = loader.Root(arguments.root)
    changes = diff(root.open(arguments.a), root.open(arguments.b))
    lines = [
        f"{changes.a} -> {changes.b}",
        f"samples   {changes.samples[0]} -> {changes.samples[1]}   "
        f"excluded {changes.excluded[0]} -> {changes.excluded[1]}",
        f"bytes     {size(changes.nbytes[0])} -> {size(changes.nbytes[1])}",
        f"parts     +{len(changes.parts_added)} -{len(changes.parts_removed)}",
    ]
    if changes.slices:
        lines.append(f"slices    excluded: {', '.join(changes.slices)}")
    lines += [f"group     +{name} ({', '.join(fields)})" for name, fields in changes.groups_added.items()]
    lines += [f"group     -{name} ({', '.join(fields)})" for name, fields in changes.groups_removed.items()]
    lines += [f"group     {name} covers {a} -> {b} samples" for name, (a, b) in changes.coverage.items()]
    for name, (a, b) in changes.columns.items():
        lines.append(f"column    {name}: {_stats(a)} -> {_stats(b)}")
    return changes.to_json(), "\n".join(lines), 0


def _stats(row: dict[str, Any] | None) -> str:
    if row is None:
        return "absent"
    shown = {name: row[name] for name in ("n", "nulls", "nans", "zeros") if row.get(name)}
    shown |= {name: f"{row[name]:.6g}" for name in ("min", "mean", "max") if row.get(name) is not None}
    if row.get("categories"):
        shown["categories"] = len(row["categories"])
    return " ".join(f"{name}={value}" for name, value in shown.items())


@verb(
    "compute a digest of the content, independent of order and layout",
    REF,
    flag("--full", "read and check every byte, instead of trusting the indexes"),
    list_option("--without NAME", "leave out a field or metadata column"),
    workers_argument(),
)
def run_digest(arguments: Namespace) -> Answer:
    """Exit with 1 if a sample failed."""
    from ..formats.content_digest import content_digest

    done = content_digest(
        loader.Root(arguments.root).open(arguments.ref),
        full=arguments.full,
        without=arguments.without,
        workers=arguments.workers,
    )
    return report_answer(done, failed=done.failures)


@verb(
    "store the packed sequences of a version's token documents as a dataset",
    REF,
    argument("name", "dataset of the sequences; run again for a newer version of the documents"),
    argument("--field NAME", "field with a document's tokens, such as tokens.npy", required=True),
    argument("--length N", "tokens of a sequence", type=int, required=True),
    argument("--pad-id N", "token at positions without one (default: 0)", type=int, default=0),
    list_option(
        "--beside FIELD=FILL", "field with a value per token, and its value at other positions: mask.npy=0"
    ),
    argument("--together COLUMN", "documents with one value share a sequence, such as pair_id"),
    argument("--lengths SQL", "a document's number of tokens, such as n_tokens (default: by its bytes)"),
    flag("--whole", "split no document; refuse documents longer than a sequence"),
    workers_argument(),
)
def run_pack(arguments: Namespace) -> Answer:
    from ..packing.pack import pack_documents

    request = loader.pack(
        arguments.field,
        arguments.length,
        pad_id=arguments.pad_id,
        lengths=arguments.lengths,
        beside=_fills(arguments.beside),
        together=arguments.together,
        split=not arguments.whole,
    )
    root = loader.Root(arguments.root)
    report = pack_documents(root, arguments.ref, arguments.name, request, workers=arguments.workers)
    return report_answer(report)


def _fills(pairs: Sequence[str]) -> dict[str, int]:
    """Return field -> fill of `--beside FIELD=FILL`. Raises: InvalidRuntime."""
    fills: dict[str, int] = {}
    for pair in pairs:
        field, _, text = pair.rpartition("=")
        # Masks are bool fields, whose fill is stored as 0 or 1.
        number = {"false": "0", "true": "1"}.get(text.lower(), text)
        if not field or field in fills or not re.fullmatch(r"-?\d+", number):
            raise InvalidRuntime(
                f"--beside {pair}: a field and a whole number are needed, each field once, such as labels.npy=-100"
            )
        fills[field] = int(number)
    return fills


@verb(
    "list samples whose texts share 13 words in a row with protected versions, such as evaluations",
    REF,
    list_option("--protected REF", "version to compare with, such as gsm8k@1", required=True),
    argument("--field NAME", "text field of the version, such as txt (default: all of txt, json and jsonl)"),
    argument("--min R", "smallest share of a sample's words, 0 to 1 (default: 0)", type=float, default=0.0),
)
def run_overlap(arguments: Namespace) -> Answer:
    """Exit with 1 if a sample overlaps."""
    from ..search.overlap.find_overlaps import find_overlaps

    report = find_overlaps(
        loader.Root(arguments.root),
        arguments.ref,
        arguments.protected,
        field=arguments.field,
        min_ratio=arguments.min,
    )
    return report_answer(report, failed=report.overlaps)


@verb(
    "write the dataset card of a version: counts, licences, provenance, examples",
    REF,
    argument("--html FILE", "write it as one HTML file"),
    argument("--into FOLDER", "write it as JSON, Markdown and HTML"),
    flag("--save", "write it into the root, unless a card exists"),
    argument("--examples N", "samples of each kind; 0 reads no media", type=int),
)
def run_card(arguments: Namespace) -> Answer:
    """Return the dataset card as Markdown, or write it."""
    from ..card.build import EXAMPLES, build_card, save_card, write_card, write_html
    from ..card.render import render_markdown
    from ..card.value import card_document
    from ..places import check_file_apart

    n_examples = EXAMPLES if arguments.examples is None else arguments.examples
    root = loader.Root(arguments.root)
    for path in (arguments.html, arguments.into):
        if path is not None:
            check_file_apart(root.store, path, "Choose a path beside the root, or pass --save")
    card = build_card(root, root.open(arguments.ref), n_examples=n_examples)
    lines = []
    if arguments.html is not None:
        lines.append(str(write_html(Path(arguments.html), card)))
    if arguments.into is not None:
        lines += map(str, write_card(Path(arguments.into), card))
    if arguments.save:
        saved = save_card(root.store, card)
        lines += [f"{root.url}/{saved.folder}/{name}" for name in saved.written]
        lines += [
            f"{root.url}/{saved.folder}/{name} holds another card and was not replaced" for name in saved.kept
        ]
    text = "\n".join(lines)
    if not text and not arguments.json:
        text = render_markdown(card).rstrip("\n")
    return card_document(card), text, 0


BENCH_FORM = ("{:<12}", " {:>10}", " {:>12}", " {:>10}", " {:>8}")


@verb(
    "measure how fast a version loads here, which stage limits, and what to change",
    REF,
    FIELDS,
    argument("--batch N", "samples in a batch (default: 64)", type=int, default=64),
    argument("--seconds S", "seconds to measure (default: 10)", type=float, default=10.0),
    argument("--workers N", "threads (default: one per core)", type=int),
    argument(
        "--verify",
        "checksum to compare samples with, as in loader.Root(verify=) (default: crc32c)",
        choices=("crc32c", "sha256"),
        default="crc32c",
    ),
)
def run_bench(arguments: Namespace) -> Answer:
    from ..bench import bench as measure

    version = loader.Root(arguments.root, verify=arguments.verify).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    result = measure(
        version,
        fields,
        where_present=where_present,
        batch=arguments.batch,
        seconds=arguments.seconds,
        workers=arguments.workers,
    )
    return result.to_json(), _bench_text(result), 0


def _bench_text(bench: "Bench") -> list[str | Table]:
    whole = sum(rate.seconds for rate in bench.stages.values())
    rows = [(*_rate_cells(name, rate), share(rate.seconds, whole)) for name, rate in bench.stages.items()]
    alone = [_rate_cells("one thread", bench.alone)]
    if bench.workers:
        alone.append(_rate_cells(f"{bench.workers} workers", bench.together))
    return [
        f"{bench.version}: {', '.join(bench.fields)} of {number(bench.n_samples)} samples, shuffled batches of "
        f"{bench.batch}",
        "",
        Table(form=BENCH_FORM, header=("", "ms/batch", "samples/s", "MB/s", "share"), rows=[*rows, *alone]),
        "",
        f"samples on disk are read by: {bench.native}",
        f"limited by: {bench.limited_by or 'no measured stage'}",
        *(f"  {one}" for one in bench.advice),
    ]


def _rate_cells(name: str, rate: "Rate") -> tuple[str, ...]:
    rates = [rate.samples_per_second, rate.bytes_per_second and rate.bytes_per_second / 1e6]
    return (name, f"{1e3 * rate.seconds:.3f}", *("-" if one is None else f"{one:,.0f}" for one in rates))
