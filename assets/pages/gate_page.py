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
from penstock.card.classes import modality_of, part_fields
from penstock.card.examples import address_at, example_of
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
    for finding in (one for result in results for one in result.findings):
        name = str(finding["column"]).partition(" =")[0]
        of = str(finding["of"])
        kind = of.removeprefix("objects: ").partition(",")[0]
        media = of.startswith("objects")
        now = compared.now
        before = compared.baseline.batches
        current = _values(now.media if media else now.samples, name, kind)
        earlier = [
            value for one in before for value in _values(one.media if media else one.samples, name, kind)
        ]
        if current and earlier and len(shown) < MAX_PLOTS:
            shown.setdefault(f"{name} ({'objects, ' if media else ''}{kind or 'all'})", (earlier, current))
    try:
        return plots.before_and_after(shown)
    except MissingDependency:
        return ""


def _values(frame: "pl.DataFrame", name: str, kind: str) -> list[Any]:
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

    facts: heading -> text. plot: from `plotted`. shown, before: from `finding_examples` and `baseline_examples`.
    """
    template = templates(Path(__file__).parent).get_template("gate.html.j2")
    return template.render(
        title=title,
        facts=facts,
        results=sorted(results, key=lambda result: (not result.stops, result.passed)),
        picture=_IMAGE.fullmatch(plot),
        shown=_by_words(shown),
        before=_by_words(before),
        findings=_findings,
    )


def _by_words(shown: Sequence[tuple[str, Example]]) -> list[tuple[str, list[Example]]]:
    return [
        (words, [example for _, example in pairs])
        for words, pairs in groupby(shown, key=lambda pair: pair[0])
    ]


def _findings(result: CheckResult) -> list[list[object]]:
    return [
        [
            *(finding[name] for name in ("what", "column", "of", "before", "now")),
            f"{float(str(finding['effect'])):.4g}",
            "" if finding["certain"] else f"{float(str(finding['limit'])):.4g}",
            ", ".join(map(str, finding["keys"])),
        ]
        for finding in result.findings
    ]


def save(store: Store, dataset: str, batch: str, html: str) -> str:
    """Write the page; return its path in the root."""
    data = html.encode()
    path = f"gates/{dataset}/{batch}-{hashlib.sha256(data).hexdigest()[:16]}.html"
    with suppress(AlreadyExists):  # the same page is already there
        store.put_if_absent(path, data)
    return path


MAX_EXAMPLES, MAX_OF_FINDING = 12, 3
"""Most examples on a page, and for a finding."""
MAX_NBYTES = 2**20
"""Most bytes of all images on a page."""
MAX_KINDS = 3
"""Most kinds of baseline samples."""
Shown = list[tuple[str, Example]]
_log = logging.getLogger(__name__)


def finding_examples(
    root: loader.Root, samples: StageRecord, table: "pl.DataFrame", results: Sequence[CheckResult]
) -> Shown:
    """Return (text of the finding, example), each sample once; [] without the packages for drawing.

    table: the batch's rows. Prefers different objects; leaves out taken-down samples.
    """
    parts = {part.id: part for part in map(loader.Part.from_json, samples.body["parts"])}
    store = record_reader(root.store, samples)
    examples: Shown = []
    nbytes = 0
    try:
        for words, row in _choose_examples(results, _live(root, samples.dataset, table)):
            example = _example(store, parts[row["part"]], row)
            nbytes += len(example.picture)
            if nbytes > MAX_NBYTES or len(examples) == MAX_EXAMPLES:
                break
            examples.append((words, example))
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
    for kind in list(dict.fromkeys(example.kind for _, example in shown))[:MAX_KINDS]:
        for row in _earlier(root, baseline, kind):
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


def _earlier(root: loader.Root, baseline: Baseline, kind: str) -> list[dict[str, Any]]:
    import polars as pl

    for batch in baseline.batches:
        table = _live(root, baseline.version.dataset, batch.samples)
        if "kind" in table.columns:
            table = table.filter(pl.col("kind") == kind)
        if len(table):
            names = [name for name in ("key", "raw_key") if name in table.columns]
            rows = sorted(table.select(names).iter_rows(named=True), key=lambda row: _hash(row["key"]))
            keys = [row["key"] for row in _different(rows)[:MAX_OF_FINDING]]
            by_key = {
                row["key"]: row for row in table.filter(pl.col("key").is_in(keys)).iter_rows(named=True)
            }
            return [by_key[key] for key in keys]
    return []


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _different(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    firsts = set({row.get("raw_key"): row["key"] for row in reversed(rows)}.values())
    return sorted(rows, key=lambda row: row["key"] not in firsts)


def _choose_examples(
    results: Sequence[CheckResult], table: "pl.DataFrame"
) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = _rows(table, {str(key) for one in results for each in one.findings for key in each["keys"]})
    seen: set[str] = set()
    for finding in (each for one in results for each in one.findings):
        named = [rows[str(key)] for key in finding["keys"] if str(key) in rows]
        unseen = {row["key"]: row for row in named if row["key"] not in seen}
        fresh = _different(list(unseen.values()))[:MAX_OF_FINDING]
        seen |= {row["key"] for row in fresh}
        of = ""
        if finding["of"]:
            of = f" of {finding['of']}"
        for row in fresh:
            yield f"{finding['what']}: {finding['column']}{of}", row


def _rows(table: "pl.DataFrame", names: set[str]) -> dict[str, dict[str, Any]]:
    import polars as pl

    rows: dict[str, dict[str, Any]] = {}
    for column in ("raw_key", "key"):
        if names and column in table.columns:
            matching = table.filter(pl.col(column).is_in(sorted(names))).unique(
                column, keep="first", maintain_order=True
            )
            rows |= {row[column]: row for row in matching.iter_rows(named=True)}
    return rows


def _live(root: loader.Root, dataset: str, table: "pl.DataFrame") -> "pl.DataFrame":
    import polars as pl
    import pyarrow as pa

    denies = root.state.denies
    if not denies or not len(table):
        return table
    tests = DenyList(denies, dataset)
    known = [name for name in tests.columns if name in table.columns]
    keys = pa.table({name: pa.array(table[name].to_list(), pa.string()) for name in known})
    return table.filter(pl.Series(tests.denying_entries(keys) == 0))


def _example(store: RangeReader, part: loader.Part, row: dict[str, Any]) -> Example:
    fields = {name for shard in part.shards for name in shard.field_nbytes}
    return _read_example(store, fields, partial(part_address, store, part, int(row["row"])), row)


def _example_of_version(root: loader.Root, version: loader.Version, row: dict[str, Any]) -> Example:
    place = version.parts.position(row["part"]), int(row["row"])
    return _read_example(
        version.placed or root.store, part_fields(version, place[0]), partial(address_at, version, place), row
    )


def _read_example(
    store: RangeReader,
    fields: frozenset[str] | set[str],
    find: Callable[[Sequence[str]], SampleAddress],
    row: dict[str, Any],
) -> Example:
    modality = modality_of(fields)
    return example_of(store, str(row.get("kind") or modality), modality, fields, find, row)
