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
from loader.dataset.versions.version import Version, View
from loader.errors import EmptyView, InvalidRuntime, MissingDependency
from loader.order.random.keyed_permutation import I64
from loader.order.random.lanes import choose_shape, locate
from loader.storage import open_store
from loader.storage.disk.scratch import scratch_folder

KEY = "key"
SOURCE_KEY = "source_key"
"""Columns to look a key up in: the version's own, or the source's."""
_EXCLUDED = -1
_UNKNOWN = -2
"""Instead of an ordinal: every sample of the key is excluded; no sample has the key."""
_OF_A_JOB = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"
"""Environment variables that make Streaming wait for other processes."""


def key_ordinals(version: Version, keys: Sequence[str], by: str = KEY) -> I64:
    """Return keys' ordinals: int64 [len(keys)], -1 for an excluded sample. by: `KEY` or `SOURCE_KEY`.

    Raises: InvalidRuntime if a key is repeated, unknown, or matches several live samples.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    key_array = pa.array(keys, pa.string())
    n_distinct = pc.count_distinct(key_array).as_py()
    if n_distinct != len(keys):
        raise InvalidRuntime(
            f"{len(keys) - n_distinct} of {len(keys)} keys come more than once; name each once",
            what="repeated keys",
            given=len(keys) - n_distinct,
            accepted=0,
        )
    ordinals = np.full(len(keys), _UNKNOWN, np.int64)
    parts = version.parts
    for table in get_tables(version.store, _key_files(version), ["part", "row", by]):
        number = pc.fill_null(
            pc.index_in(table[by], value_set=key_array), -1
        ).to_numpy()  # [rows]: index in `keys`
        matches = number >= 0
        number = number[matches]
        row = table["row"].to_numpy()[matches]
        position = parts.positions(table["part"])[matches]
        for part in np.unique(position).tolist():
            in_part = position == part
            is_live = parts.live_members(part)  # bool [rows of the part]
            # Excluded rows have no ordinal: the live ones count on from the part's first.
            live_ordinals = parts.first_ordinal[part] + np.cumsum(is_live) - 1
            part_ordinals = np.where(is_live, live_ordinals, _EXCLUDED)
            _set_ordinals(ordinals, number[in_part], part_ordinals[row[in_part]], keys, by, version.name)
    unknown = np.flatnonzero(ordinals == _UNKNOWN)
    if len(unknown):
        other = SOURCE_KEY if by == KEY else KEY
        first = keys[int(unknown[0])]
        raise InvalidRuntime(
            f"{len(unknown)} of {len(keys)} keys are no sample's {by} in {version.name}, the first is "
            f"{first!r}; compare with the column {other!r} (--by {other}), or name keys of this version",
            what=by,
            where=version.name,
            given=first,
        )
    return ordinals


def _key_files(version: Version) -> list[TableFile]:
    entries = version.manifest["samples"]
    return [TableFile.from_json(entry) for entry in entries if entry["group"] == "keys"]


def _set_ordinals(
    ordinals: I64, numbers: I64, part_ordinals: I64, keys: Sequence[str], by: str, name: str
) -> None:
    """Set the ordinals of some keys, an excluded sample's only if no live one has the key.

    numbers, part_ordinals: int64 [matches]: index in `keys`, and the ordinal or -1.
    """
    is_live = part_ordinals >= 0
    live_numbers, n_matches = np.unique(numbers[is_live], return_counts=True)
    is_repeated = (n_matches > 1) | (ordinals[live_numbers] >= 0)
    repeated = live_numbers[is_repeated]
    if len(repeated):
        raise InvalidRuntime(
            f"{by} {keys[int(repeated[0])]!r} belongs to several samples of {name}: name samples by their key",
            what=f"samples of a {by}",
            where=name,
            given=keys[int(repeated[0])],
            accepted="one sample",
        )
    ordinals[numbers] = np.maximum(ordinals[numbers], _EXCLUDED)
    ordinals[numbers[is_live]] = part_ordinals[is_live]


def remaining_samples(view: View, seen: I64, seed: int) -> I64:
    """Return a view's samples not in `seen`: int64 version ordinals, shuffled (order L1).

    seen: int64 version ordinals; -1 is ignored. Raises: EmptyView.
    """
    members = view.members()  # bool [samples of the version], a new array
    members[seen[seen >= 0]] = False
    rest = np.flatnonzero(members).astype(np.int64)
    if not len(rest):
        raise EmptyView(f"every sample of {view!r} was seen: the epoch is over, plan the next one")
    shape = choose_shape(len(rest), view.mean_sample_bytes, None, None)
    positions = np.arange(len(rest), dtype=np.int64)
    epoch = 0
    return rest[locate(shape, seed, view.version.dataset, epoch, positions)]


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
    script = Path(__file__).with_name("streaming_epoch.py")
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_JOB}
    with scratch_folder("order") as folder:
        (folder / "index.json").write_bytes(store.get("index.json").data)
        target = folder / "order.npy"
        try:
            result = subprocess.run(
                [python, str(script)],
                input=json.dumps({**request, "folder": str(folder), "target": str(target)}),
                capture_output=True,
                text=True,
                env=environment,
            )
        except OSError as error:
            raise InvalidRuntime(f"--python {python}: {error}; name an interpreter") from None
        if "No module named 'streaming'" in result.stderr:
            raise MissingDependency(
                f"{python} has no mosaicml-streaming, which lays out its epochs: pip install mosaicml-streaming there, "
                "or name another interpreter with --python"
            )
        if result.returncode or not target.exists():
            message = f"exit status {result.returncode}"
            lines = result.stderr.strip().splitlines()
            if lines:
                message = lines[-1]  # of a traceback: the error
            raise InvalidRuntime(f"streaming refuses to lay out this epoch: {message}")
        steps = np.load(target, allow_pickle=False)
        release = result.stdout.split()[-1]  # Streaming may print before
        return StreamingEpoch(steps, release)


def epoch_rest(epoch: I64, step: int) -> I64:
    """Return the samples from a step on, int64; only the last step may be short.

    epoch: `StreamingEpoch.steps`. step: first step not trained.

    Raises: EmptyView if there is no such step; InvalidRuntime if an earlier step is short.
    """
    n_samples = (epoch >= 0).sum(1)  # [steps]: without padding
    n_steps = int(np.flatnonzero(n_samples).max(initial=-1)) + 1
    if not 0 <= step < n_steps:
        message = f"--step {step}: the epoch's steps are 0 to {n_steps - 1}, and step {n_steps} begins the next epoch"
        raise EmptyView(message, what="--step", given=step, accepted=f"0 to {n_steps - 1}")
    global_batch = epoch.shape[1]
    short = np.flatnonzero(n_samples[step : n_steps - 1] < global_batch)
    if len(short):
        short_step = step + int(short[0])
        raise InvalidRuntime(
            f"step {short_step} of streaming's epoch has {int(n_samples[short_step])} of {global_batch} samples, and "
            "others follow: our steps are of one size. Begin after it, or end the epoch there",
            what=f"step {short_step}",
            given=int(n_samples[short_step]),
            accepted=global_batch,
        )
    rest = epoch[step:n_steps]
    return rest[rest >= 0]


def ordinals_of_numbers(version: Version, numbers: I64, url: str) -> I64:
    """Return the ordinals of sample indices of the MDS dataset at a URL: int64 [n].

    Raises: InvalidRuntime if a sample is excluded, or if the URL is another dataset's.
    """
    distinct, inverse = np.unique(numbers, return_inverse=True)
    prefix = _key_prefix(version, url)
    ordinals = key_ordinals(version, [f"{prefix}{number}" for number in distinct.tolist()])
    excluded = distinct[ordinals < 0]
    if len(excluded):
        message = (
            f"{version.name} excludes {len(excluded)} samples that this epoch has yet to read, the first is "
            f"{excluded[0]}: name a version that has them"
        )
        raise InvalidRuntime(message, what="excluded samples", where=version.name, given=len(excluded))
    return ordinals[inverse]


def _key_prefix(version: Version, url: str) -> str:
    """Return what precedes the sample index in a key: "", or the split's folder with a `/` at its end."""
    import pyarrow.compute as pc

    prefixes: set[str] = set()
    for table in get_tables(version.store, _key_files(version), ["key"]):
        matches = pc.extract_regex(table["key"], "^(?P<prefix>(?:.*/)?)[0-9]+$")
        prefix_array = pc.struct_field(matches, "prefix").drop_null()
        prefixes.update(pc.unique(prefix_array).to_pylist())
    # Without a folder, `key_ordinals` names the keys that are unknown.
    if not prefixes or "" in prefixes:
        return ""
    # With a slash on both sides, so that the split `train/` does not match a folder `pretrain`.
    folder = f"/{escape_key(url.strip('/'))}/"
    own_prefixes = [prefix for prefix in prefixes if folder.endswith(f"/{prefix}")]
    if not own_prefixes:
        known = ", ".join(sorted(prefixes)[:5])
        message = (
            f"the keys of {version.name} are numbers after {known}, and {url} ends with none of them: name the folder "
            "of a split, as it lies in the place that was registered or imported"
        )
        raise InvalidRuntime(message, what="keys", where=version.name, given=url, accepted=known)
    # The split `en/train/` lies in a folder that the split `train/` matches too.
    return max(own_prefixes, key=len)
