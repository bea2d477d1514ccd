"""Loaders over one Parquet table of 1 MiB chunks, shuffled: a registered version, and streaming of HF datasets."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..data import Data

if TYPE_CHECKING:
    from ..view.rows import Row
    from .rows import Sizes

CHUNK_BYTES = 2**20
FILES = 8
COLUMN = "jpg"


def make(data: Data, folder: Path) -> Path:
    """Write the samples as Parquet files whose row groups have about 1 MiB, and return the folder, once.

    Contestants of other environments call it too: it needs pyarrow alone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if folder.exists():
        return folder
    making = folder.with_name(f"{folder.name}.making")
    making.mkdir(parents=True, exist_ok=True)
    rows = max(1, int(CHUNK_BYTES // data.mean_bytes))
    for number in range(FILES):
        low, high = (len(data) * at // FILES for at in (number, number + 1))
        table = pa.table({COLUMN: pa.array([data[i] for i in range(low, high)], pa.binary())})
        path = making / f"train-{number:05d}-of-{FILES:05d}.parquet"
        pq.write_table(table, path, row_group_size=rows, compression="NONE", use_dictionary=False)
    making.rename(folder)
    return folder


def measured(folder: Path, sizes: "Sizes") -> Iterator["Row"]:
    """Rows of the page."""
    from ..page import ratios
    from ..rows import Row as Contest
    from ..throughput import Bench, measure, say
    from ..view.rows import Row

    contest = Contest(
        name="parquet", title="Images in Parquet", kind="images", samples=20_000, aims=(), limit=""
    )
    (folder / "parquet").mkdir(parents=True, exist_ok=True)
    bench = Bench(folder / "parquet", ("penstock", "hf_datasets"), sizes.photos / contest.samples)
    turns, spread, failed = measure(bench, contest, max(5, sizes.rounds))
    (peer,) = [name for name in turns if "streaming" in name] or [""]
    for name in turns:
        if "Parquet" not in name:
            continue
        what = f"train on {name.removeprefix('penstock, ')}"
        if peer:
            yield Row(
                what=what,
                values=ratios(turns, name, peer),
                unit="x HF streaming's speed",
                goal=3,
                more_is_better=True,
                digits=1,
            )
        native = ratios(turns, name, "penstock, native")
        yield Row(what=what, values=native, unit="x a native version's speed")
        yield Row(what="- twentieths of the table in a batch", values=[spread[name]], unit="", digits=1)
    if peer:
        rates = [one["samples"] / one["seconds"] for one in turns[peer]]
        yield Row(what="- HF streaming, a buffer of 1,000, 2 workers", values=rates, unit="/s", digits=0)
        yield Row(what="- its twentieths of the table in a batch", values=[spread[peer]], unit="", digits=1)
    for name, why in {**bench.failed, **failed}.items():
        say(f"{name} does not take part: {why}")
