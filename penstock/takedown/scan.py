"""Every table and text under a root, held against the hashes of a takedown: what nobody thought of is found too."""

import json
from collections.abc import Iterator, Mapping
from functools import cache, partial

from loader import Root
from loader.dataset.history import Deny
from loader.dataset.parquet import parse_table
from loader.errors import Corrupt, StoreError
from loader.storage import Store

from .cells import cell_texts, texts
from .find import all_datasets
from .marks import Marks, marks_of
from .record import Place, Record

SCANNED = (
    "data/",
    "tables/",
    "stages/",
    "plans/",
    "packs/",
    "ledgers/",
    "cards/",
    "gates/",
    "takedowns/",
    "reports/",
    "log/",
)
"""The folders of a root that may name samples."""


def marks_on_record(deny: Deny, record: Record, dataset: str) -> Marks:
    """What a dataset's tables are held against."""
    return marks_of(deny.salt, dataset, (), deny.hashes, record.marks.get(dataset, ()))


def scanned(root: Root, deny: Deny, record: Record) -> Iterator[Place]:
    """Every table and text under the root, but those that are places of their own."""
    known = {place["path"] for place in record.having("absent")}
    marks = cache(partial(marks_on_record, deny, record))
    datasets = all_datasets(root)
    txns = {one.txn: one.dataset for one in root.state.txns.values()}
    looked = 0
    for prefix in SCANNED:
        for info in root.store.list(prefix):
            if info.key in known or not info.key.endswith((".parquet", ".json", ".jsonl", ".md", ".html")):
                continue
            looked += 1
            of = dataset_of(info.key, txns)
            mine = [marks(dataset) for dataset in (datasets if of is None else [of])]
            place = {"check": "scan", "what": "a table or text", "path": info.key}
            try:
                hit = any(one.names(text) for text in object_texts(root.store, info.key) for one in mine)
            except (Corrupt, StoreError, ValueError) as error:
                yield {**place, "clean": False, "why": f"it could not be read: {type(error).__name__}"}
                continue
            if hit:
                why = (
                    "the log is never rewritten"
                    if prefix == "log/"
                    else "penstock takedown run --apply rewrites it, or penstock gc deletes it with its retired version"
                )
                yield {**place, "clean": False, "why": f"it holds a name that is taken down: {why}"}
    yield {
        "check": "scan",
        "what": f"{looked} tables and texts under {', '.join(SCANNED)}",
        "clean": True,
        "evidence": "no cell or word of the others has one of the hashes",
    }


def dataset_of(path: str, txns: Mapping[str, str]) -> str | None:
    """Whose object it is, where it is one dataset's: others have samples of the same keys."""
    place, _, rest = path.partition("/")
    name = rest.partition("/")[0]
    return txns.get(name) if place == "data" else name if place in ("tables", "stages", "cards") else None


def object_texts(store: Store, path: str) -> Iterator[str]:
    """Every text in a table or JSON object; of others the whole."""
    data = store.get(path).data
    if path.endswith(".parquet"):
        yield from cell_texts(parse_table(data, path))
    elif path.endswith(".json"):
        yield from texts(json.loads(data))
    elif path.endswith(".jsonl"):
        yield from (text for line in data.splitlines() for text in texts(json.loads(line)))
    else:
        yield data.decode(errors="replace")
