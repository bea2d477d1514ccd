"""The page of a verdict: findings, plots and examples, at `gates/<dataset>/<batch>-<hash>.html` in the root."""

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.log.denies import DenyList
from loader.dataset.shards.address import SampleAddress
from loader.dataset.writing.part_extension import part_address
from loader.errors import AlreadyExists, MissingDependency, StoreError
from loader.storage import RangeReader, Store
from penstock.card.classes import fields_modality, part_fields
from penstock.card.examples import build_example, sample_address
from penstock.card.render import templates
from penstock.card.value import Example
from penstock.stages import StageRecord

from ..checks.outcome import CheckResult
from ..drift.compare import Baseline
from ..pipeline.stages import record_reader
from . import plots

if TYPE_CHECKING:
    import polars as pl

    from ..drift.compare import GateInputs

MAX_PLOTS = 6
"""Most columns with a plot."""
_IMAGE = re.compile(r"!\[(?P<alt>[^]]*)\]\((?P<data>data:image/png;base64,[A-Za-z0-9+/=]+)\)")


def plot_findings(compared: "GateInputs", results: Sequence[CheckResult]) -> str:
    """Return the first columns with findings, before and after, as a Markdown image or ""."""
    if compared.baseline is None:
        return ""
    shown: dict[str, tuple[list[Any], list[Any]]] = {}
    for finding in _all_findings(results):
        # A finding on a category is named "licence = x".
        name = str(finding["column"]).partition(" =")[0]
        # Samples are named "photo" or "photo, source 'a'", raw objects "objects: photo"; "" names all samples.
        of = str(finding["of"])
        kind = of.removeprefix("objects: ").partition(",")[0]
        title = kind or "all"
        table = "samples"
        if of.startswith("objects"):
            title = f"objects, {title}"
            table = "media"
        current = _values(getattr(compared.now, table), name, kind)
        earlier = []
        for batch in compared.baseline.batches:
            earlier += _values(getattr(batch, table), name, kind)
        if current and earlier and len(shown) < MAX_PLOTS:
            # Several findings may name one column: one plot shows all of them.
            shown.setdefault(f"{name} ({title})", (earlier, current))
    try:
        return plots.before_and_after(shown)
    # A machine without matplotlib still writes the verdict; the page has no plot.
    except MissingDependency:
        return ""


def _all_findings(results: Sequence[CheckResult]) -> list[Mapping[str, Any]]:
    """Return the findings of all checks, in their order."""
    findings: list[Mapping[str, Any]] = []
    for result in results:
        findings += result.findings
    return findings


def _values(frame: "pl.DataFrame", name: str, kind: str) -> list[Any]:
    """Return a column's values that are not null; empty without the column. kind: of the rows, "" for all."""
    if name not in frame.columns:
        return []
    if kind and "kind" in frame.columns:
        frame = frame.filter(frame["kind"] == kind)
    return frame[name].drop_nulls().to_list()


def render(
    title: str,
    facts: Mapping[str, str],
    results: Sequence[CheckResult],
    plot: str,
    shown: Sequence[tuple[str, Example]] = (),
    before: Sequence[tuple[str, Example]] = (),
) -> str:
    """Return the page as HTML.

    facts: heading -> text. plot: from `plot_findings`. shown, before: from `finding_examples` and `baseline_examples`.
    """
    template = templates(Path(__file__).parent).get_template("gate.html.j2")
    # A match, whose groups `alt` and `data` the template reads; None without a plot.
    picture = _IMAGE.fullmatch(plot)
    return template.render(
        title=title,
        facts=facts,
        results=sorted(results, key=lambda result: (not result.stops, result.passed)),
        picture=picture,
        shown=_group_by_text(shown),
        before=_group_by_text(before),
        finding_rows=_finding_rows,  # the template calls it for each result
    )


def _group_by_text(
    texts_and_examples: Sequence[tuple[str, Example]],
) -> list[tuple[str, list[Example]]]:
    """Return (text, its examples) for each text. The examples of one text must be neighbours."""
    groups = []
    for text, text_and_examples in groupby(texts_and_examples, key=lambda pair: pair[0]):
        examples = [example for _, example in text_and_examples]
        groups.append((text, examples))
    return groups


def _finding_rows(result: CheckResult) -> list[list[object]]:
    """Return a row of texts for each finding."""
    rows: list[list[object]] = []
    for finding in result.findings:
        row = [finding[name] for name in ("what", "column", "of", "before", "now")]
        effect = float(str(finding["effect"]))
        row.append(f"{effect:.4g}")
        limit = ""  # what is certain has none
        if not finding["certain"]:
            limit = f"{float(str(finding['limit'])):.4g}"
        row.append(limit)
        row.append(", ".join(map(str, finding["keys"])))
        rows.append(row)
    return rows


def save(store: Store, dataset: str, batch: str, html: str) -> str:
    """Write the page; return its path in the root."""
    data = html.encode()
    # The digest names the page, so a page that someone was sent never changes.
    digest = hashlib.sha256(data).hexdigest()[:16]
    path = f"gates/{dataset}/{batch}-{digest}.html"
    with suppress(AlreadyExists):  # the same page is already there
        store.put_if_absent(path, data)
    return path


MAX_EXAMPLES = 12
"""Most examples on a page."""
MAX_OF_FINDING = 3
"""Most examples for a finding."""
MAX_NBYTES = 2**20
"""Most bytes of all images on a page."""
MAX_KINDS = 3
"""Most kinds of baseline samples."""
Shown = list[tuple[str, Example]]
"""(text above the example, example)."""
_log = logging.getLogger(__name__)


def finding_examples(
    root: loader.Root,
    samples: StageRecord,
    table: "pl.DataFrame",
    results: Sequence[CheckResult],
) -> Shown:
    """Return (text of the finding, example), each sample once; [] without the packages for drawing.

    table: the batch's rows. Prefers different objects; leaves out taken-down samples.
    """
    parts = {part.id: part for part in map(loader.Part.from_json, samples.body["parts"])}
    store = record_reader(root.store, samples)
    # A page stays in the root for years: it must not show what a takedown deletes.
    live = _live(root, samples.dataset, table)
    examples: Shown = []
    nbytes = 0
    try:
        for text, row in _choose_examples(results, live):
            example = _example(store, parts[row["part"]], row)
            nbytes += len(example.picture)
            if nbytes > MAX_NBYTES or len(examples) == MAX_EXAMPLES:
                break
            examples.append((text, example))
    except MissingDependency:
        return []
    return examples


def baseline_examples(root: loader.Root, baseline: Baseline, shown: Shown) -> Shown:
    """Return (kind and version, baseline sample) for each kind in `shown`, in its order.

    Samples come from the newest batch with that kind, ordered by the hash of the key. Taken-down and unreadable ones
    are left out.
    """
    examples: Shown = []
    nbytes = 0
    kinds = dict.fromkeys(example.kind for _, example in shown)
    for kind in list(kinds)[:MAX_KINDS]:
        for row in _choose_baseline_rows(root, baseline, kind):
            try:
                example = _example_of_version(root, baseline.version, row)
            except (StoreError, MissingDependency) as error:
                _log.warning("%s of %s is not drawn: %s", row["key"], baseline.version.name, error)
                continue
            nbytes += len(example.picture)
            if nbytes > MAX_NBYTES:
                return examples
            examples.append((f"{kind} in {baseline.version.name}", example))
    return examples


def _choose_baseline_rows(root: loader.Root, baseline: Baseline, kind: str) -> list[dict[str, Any]]:
    """Return rows of the newest batch of the baseline that has live samples of a kind, at most `MAX_OF_FINDING`."""
    import polars as pl

    for batch in baseline.batches:
        table = _live(root, baseline.version.dataset, batch.samples)
        if "kind" in table.columns:
            table = table.filter(pl.col("kind") == kind)
        if not len(table):
            continue
        # All keys first, then the whole rows of the chosen ones: a table has many columns.
        names = [name for name in ("key", "raw_key") if name in table.columns]
        rows = table.select(names).rows(named=True)
        # By hash: a fair choice that is the same at each run.
        rows.sort(key=lambda row: _hash(row["key"]))
        keys = [row["key"] for row in _different_objects_first(rows)[:MAX_OF_FINDING]]
        chosen = table.filter(pl.col("key").is_in(keys))
        by_key = {row["key"]: row for row in chosen.iter_rows(named=True)}
        return [by_key[key] for key in keys]
    return []


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _different_objects_first(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all rows: the first one of each raw object, then the others."""
    first_of_object: dict[Any, str] = {}  # raw key -> key of its first sample
    for row in rows:
        # Rows without a raw key count as one object.
        first_of_object.setdefault(row.get("raw_key"), row["key"])
    firsts = set(first_of_object.values())
    # sorted() is stable, so both groups keep their order.
    return sorted(rows, key=lambda row: row["key"] not in firsts)


def _choose_examples(
    results: Sequence[CheckResult], table: "pl.DataFrame"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (text of a finding, row of one of its samples), each sample once.

    A finding names samples or raw objects. A raw object's first sample is its example.
    """
    findings = _all_findings(results)
    keys_or_raw_keys = set[str]()
    for finding in findings:
        keys_or_raw_keys.update(map(str, finding["keys"]))
    row_of_name = _rows_by_name(table, keys_or_raw_keys)
    shown: set[str] = set()  # keys of samples
    for finding in findings:
        fresh: dict[str, dict[str, Any]] = {}  # key of a sample -> its row
        for name in map(str, finding["keys"]):
            row = row_of_name.get(name)
            # Two names may be of one sample: its own key, and its raw object's.
            if row is not None and row["key"] not in shown:
                fresh[row["key"]] = row
        chosen = _different_objects_first(list(fresh.values()))[:MAX_OF_FINDING]
        shown |= {row["key"] for row in chosen}
        text = f"{finding['what']}: {finding['column']}"
        if finding["of"]:
            text += f" of {finding['of']}"
        for row in chosen:
            yield text, row


def _rows_by_name(table: "pl.DataFrame", names: set[str]) -> dict[str, dict[str, Any]]:
    """Return name -> row of the sample with that key, or of the first sample with that raw key.

    names: keys of samples or of raw objects.
    """
    import polars as pl

    rows: dict[str, dict[str, Any]] = {}
    # The key is last, so it wins if both match.
    for column in ("raw_key", "key"):
        if names and column in table.columns:
            matching = table.filter(pl.col(column).is_in(sorted(names)))
            matching = matching.unique(column, keep="first", maintain_order=True)
            rows |= {row[column]: row for row in matching.iter_rows(named=True)}
    return rows


def _live(root: loader.Root, dataset: str, table: "pl.DataFrame") -> "pl.DataFrame":
    """Return the samples that no takedown denies."""
    import polars as pl
    import pyarrow as pa

    denies = root.state.denies
    if not denies or not len(table):
        return table
    deny_list = DenyList(denies, dataset)
    known = [name for name in deny_list.columns if name in table.columns]
    keys = pa.table({name: pa.array(table[name].to_list(), pa.string()) for name in known})
    # int64 [rows]: the number of the takedown, 0 for none.
    is_live = deny_list.denying_entries(keys) == 0
    return table.filter(pl.Series(is_live))


def _example(store: RangeReader, part: loader.Part, row: dict[str, Any]) -> Example:
    """Return a sample of the batch, read through its part: the batch may be in no version. row: of its table."""
    fields = set[str]()
    for shard in part.shards:
        fields.update(shard.field_nbytes)
    find = partial(part_address, store, part, int(row["row"]))
    return _read_example(store, fields, find, row)


def _example_of_version(root: loader.Root, version: loader.Version, row: dict[str, Any]) -> Example:
    position = version.parts.position(row["part"])
    find = partial(sample_address, version, (position, int(row["row"])))
    fields = part_fields(version, position)
    return _read_example(version.placed or root.store, fields, find, row)


def _read_example(
    store: RangeReader,
    fields: frozenset[str] | set[str],
    find: Callable[[Sequence[str]], SampleAddress],
    row: dict[str, Any],
) -> Example:
    """Return a sample with its image. fields: of its part. find: field names -> their address. row: its columns."""
    modality = fields_modality(fields)
    kind = str(row.get("kind") or modality)  # a table without kinds names the modality of the fields
    return build_example(store, kind, modality, fields, find, row)
