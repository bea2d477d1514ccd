"""Convert a MosaicML Streaming epoch's order to ordinals, to continue the epoch with penstock."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.names import escape_key
from loader.dataset.tables.parquet import TableFile, get_tables
from loader.dataset.versions.version import Version
from loader.dataset.versions.view import View
from loader.errors import EmptyView, InvalidRuntime, MissingDependency
from loader.order.random.keyed_permutation import I64
from loader.order.random.lanes import choose_shape, locate
from loader.storage import open_store
from loader.storage.disk.scratch import held_folder

KEY, SOURCE_KEY = "key", "source_key"
"""Columns to look a key up in: the version's own, or the source's."""
_OF_A_JOB = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"
"""Environment variables that make Streaming wait for other processes."""


def ordinals_of(version: Version, keys: Sequence[str], by: str = KEY) -> I64:
    """Return keys' ordinals: int64 [len(keys)], -1 for an excluded sample. by: `KEY` or `SOURCE_KEY`.

    Raises: InvalidRuntime if a key is repeated, unknown, or matches several live samples.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    key_array = pa.array(keys, pa.string())
    if (n_distinct := pc.count_distinct(key_array).as_py()) != len(keys):
        raise InvalidRuntime(
            f"{len(keys) - n_distinct} of {len(keys)} keys come more than once; name each once"
        )
    ordinals_found = np.full(len(keys), -2, np.int64)
    parts = version.parts
    files = [TableFile.from_json(entry) for entry in version.manifest["samples"] if entry["group"] == "keys"]
    for table in get_tables(version.store, files, ["part", "row", by]):
        at = pc.fill_null(pc.index_in(table[by], value_set=key_array), -1).to_numpy()
        there = at >= 0
        positions, rows = parts.positions(table["part"])[there], table["row"].to_numpy()[there]
        at = at[there]
        for position in np.unique(positions).tolist():
            own = positions == position
            live = parts.live_members(position)
            ordinals = np.where(live, parts.first_ordinal[position] + np.cumsum(live) - 1, -1)[rows[own]]
            _keep(ordinals_found, at[own], ordinals, keys, by, version.name)
    unknown = np.flatnonzero(ordinals_found == -2)
    if len(unknown):
        other = SOURCE_KEY if by == KEY else KEY
        raise InvalidRuntime(
            f"{len(unknown)} of {len(keys)} keys are no sample's {by} in {version.name}, the first is "
            f"{keys[int(unknown[0])]!r}; compare with the column {other!r} (--by {other}), or name keys of this version"
        )
    return ordinals_found


def _keep(ordinals_found: I64, at: I64, ordinals: I64, keys: Sequence[str], by: str, name: str) -> None:
    live = ordinals >= 0
    here, times = np.unique(at[live], return_counts=True)
    again = here[(times > 1) | (ordinals_found[here] >= 0)]
    if len(again):
        raise InvalidRuntime(
            f"{by} {keys[int(again[0])]!r} belongs to several samples of {name}: name samples by their key"
        )
    ordinals_found[at] = np.maximum(ordinals_found[at], -1)
    ordinals_found[at[live]] = ordinals[live]


def remaining_samples(view: View, seen: I64, seed: int) -> I64:
    """Return a view's samples not in `seen`: int64 version ordinals, shuffled (order L1).

    seen: int64 version ordinals; -1 is ignored. Raises: EmptyView.
    """
    members = view.members()
    members[seen[seen >= 0]] = False
    rest = np.flatnonzero(members).astype(np.int64)
    if not len(rest):
        raise EmptyView(f"every sample of {view!r} was seen: the epoch is over, plan the next one")
    shape = choose_shape(len(rest), view.mean_sample_bytes, None, None)
    return rest[locate(shape, seed, view.version.dataset, 0, np.arange(len(rest), dtype=np.int64))]


class StreamingEpoch(NamedTuple):
    """An epoch's order."""

    steps: I64
    """int64 [steps, global batch]: sample indices, -1 for padding."""
    release: str
    """Streaming's version."""


def streaming_epoch(url: str, request: Mapping[str, Any], python: str) -> StreamingEpoch:
    """Return the epoch that Streaming computes from the index.json at a URL.

    request: input of `streaming_epoch.py`. python: interpreter that has mosaicml-streaming.

    Raises: MissingDependency; InvalidRuntime with Streaming's message.
    """
    store = open_store(url)
    with held_folder("order") as folder:
        (folder / "index.json").write_bytes(store.get("index.json").data)
        target = folder / "order.npy"
        try:
            done = subprocess.run(
                [python, str(Path(__file__).with_name("streaming_epoch.py"))],
                input=json.dumps({**request, "folder": str(folder), "target": str(target)}),
                capture_output=True,
                text=True,
                env={name: value for name, value in os.environ.items() if name not in _OF_A_JOB},
            )
        except OSError as error:
            raise InvalidRuntime(f"--python {python}: {error}; name an interpreter") from None
        if "No module named 'streaming'" in done.stderr:
            raise MissingDependency(
                f"{python} has no mosaicml-streaming, which lays out its epochs: pip install mosaicml-streaming there, "
                "or name another interpreter with --python"
            )
        if done.returncode or not target.exists():
            message = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise InvalidRuntime(f"streaming refuses to lay out this epoch: {message}")
        return StreamingEpoch(np.load(target, allow_pickle=False), done.stdout.split()[-1])


def rest_of(epoch: I64, step: int) -> I64:
    """Return the samples from a step on, int64; only the last step may be short.

    epoch: `StreamingEpoch.steps`. step: first step not trained.

    Raises: EmptyView if there is no such step; InvalidRuntime if an earlier step is short.
    """
    there = (epoch >= 0).sum(1)
    n = int(np.flatnonzero(there).max(initial=-1)) + 1
    if not 0 <= step < n:
        raise EmptyView(
            f"--step {step}: the epoch's steps are 0 to {n - 1}, and step {n} begins the next epoch"
        )
    short = np.flatnonzero(there[step : n - 1] < epoch.shape[1])
    if len(short):
        at = step + int(short[0])
        raise InvalidRuntime(
            f"step {at} of streaming's epoch has {int(there[at])} of {epoch.shape[1]} samples, and others follow: "
            "our steps are of one size. Begin behind it, or end the epoch there"
        )
    rest = epoch[step:n]
    return rest[rest >= 0]


def ordinals_of_numbers(version: Version, numbers: I64, url: str) -> I64:
    """Return the ordinals of sample indices of the MDS dataset at a URL: int64 [n].

    Raises: InvalidRuntime if a sample is excluded, or if the URL is another dataset's.
    """
    distinct, inverse = np.unique(numbers, return_inverse=True)
    front = _front(version, url)
    ordinals = ordinals_of(version, [f"{front}{number}" for number in distinct.tolist()])
    excluded = distinct[ordinals < 0]
    if len(excluded):
        raise InvalidRuntime(
            f"{version.name} excludes {len(excluded)} samples that this epoch has yet to read, the first is "
            f"{excluded[0]}: name a version that has them"
        )
    return ordinals[inverse]


def _front(version: Version, url: str) -> str:
    """Return what precedes a key's index: "", or the split's folder."""
    import pyarrow.compute as pc

    fronts = set[str]()
    files = [TableFile.from_json(entry) for entry in version.manifest["samples"] if entry["group"] == "keys"]
    for table in get_tables(version.store, files, ["key"]):
        parts = pc.extract_regex(table["key"], "^(?P<front>(?:.*/)?)[0-9]+$")
        fronts.update(pc.unique(pc.struct_field(parts, "front").drop_null()).to_pylist())
    if not fronts or "" in fronts:
        return ""
    place = f"/{escape_key(url.strip('/'))}/"
    front = max((one for one in fronts if place.endswith(f"/{one}")), key=len, default="")
    if not front:
        known = ", ".join(sorted(fronts)[:5])
        raise InvalidRuntime(
            f"the keys of {version.name} are numbers behind {known}, and {url} ends with none of them: name the folder "
            "of a split, as it lies in the place that was registered or imported"
        )
    return front
