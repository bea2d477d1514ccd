"""Columns for a version of 1e8 samples: tables written at once, because a writer would take hours."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import loader
from loader.dataset.log.entries import canonical
from loader.dataset.log.rules import CommitBody
from loader.dataset.log.state import State
from loader.dataset.tables.parquet import put_table
from loader.dataset.tables.stats import RunStats
from loader.dataset.writing.run_samples import put_rows

LABELS = ("people", "places", "animals", "things", "textures", "plants", "science", "space")
LANGUAGES = ("de", "en", "fr")
PERIOD = 2**20
"""Rows after which the values repeat, so that making them takes no time."""


def add_columns(root: loader.Root, dataset: str) -> None:
    """Publish the next version of a dataset, with nine columns that the newest one lacks."""
    version = root.open(dataset)
    manifest = version.manifest
    txn = root.log.begin(dataset).txn
    values = _values()
    located = pa.schema([("part", pa.string()), ("row", pa.int64())])
    schema = pa.unify_schemas([located, values.schema])

    file = put_rows(
        root.store,
        f"data/{txn}/columns/samples-metadata-0.parquet",
        _tables(version, values),
        schema,
        "samples-metadata",
        manifest["n_rows"],
    )
    stats_file = put_table(
        root.store,
        f"data/{txn}/columns/stats.parquet",
        _stats(values, manifest["n_rows"]),
        "stats",
    )
    columns = {field.name: {"group": "metadata", "type": str(field.type)} for field in values.schema}
    samples = {**file.to_json(), "group": "metadata", "columns": sorted(columns)}
    body = canonical(
        {
            **manifest,
            "parent": version.id,
            "txn": txn,
            "columns": {**manifest["columns"], **columns},
            "samples": [*manifest["samples"], samples],
            "stats": [*manifest["stats"], stats_file.to_json()],
        }
    )
    sha256 = hashlib.sha256(body).hexdigest()
    path = f"data/{txn}/columns/manifest-{sha256[:16]}.json"
    root.store.put_if_absent(path, body)

    def commit(_: State) -> CommitBody:
        return CommitBody(
            id=f"v-{sha256}",
            manifest=path,
            sha256=sha256,
            parent=version.id,
            denies=manifest["denies"],
        )

    root.log.commit(txn, commit)


def _values() -> pa.Table:
    """Return PERIOD rows: texts, numbers with few digits, whole numbers, bools."""
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {
        "label": np.array(LABELS)[rng.integers(0, len(LABELS), PERIOD)],
        "language": np.array(LANGUAGES)[rng.integers(0, len(LANGUAGES), PERIOD)],
        "source": np.char.mod("site %d", rng.integers(0, 40, PERIOD)),
        "quality": rng.random(PERIOD).round(3),
        "novelty": rng.normal(size=PERIOD).round(2),
        "perplexity": rng.lognormal(3, 1, PERIOD).round(1),
        "n_words": rng.integers(0, 2000, PERIOD),
        "is_adult": rng.random(PERIOD) < 0.02,
        "is_new": rng.random(PERIOD) < 0.3,
    }
    return pa.table(columns)


def _tables(version: loader.Version, values: pa.Table) -> Iterator[pa.Table]:
    """Yield a table for each part: part, row and the columns."""
    parts = version.parts
    first = 0
    for position, n in enumerate(parts.n_rows.tolist()):
        start = first % PERIOD
        table = pa.concat_tables([values, values]).slice(start, n)
        location = {
            "part": pa.array([parts.id(position)] * n),
            "row": pa.array(np.arange(n)),
        }
        yield pa.table({**location, **{name: table[name] for name in values.column_names}})
        first += n


def _stats(values: pa.Table, n: int) -> pa.Table:
    """Return the statistics of n rows."""
    stats = RunStats([])
    for first in range(0, n, PERIOD):
        stats.add(values.slice(0, min(PERIOD, n - first)))
    return stats.table()
