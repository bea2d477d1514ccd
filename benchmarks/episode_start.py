"""`python -m benchmarks.episode_start`: the first batch of windows of a million episodes, from a store of 20 ms.

The root is synthetic: its tables, indexes and history are real; the shards of all parts are links to one shard, whose
episodes have several lengths. Each run is a process of its own, which imports its modules by a batch of a small root
in memory. Its time is from opening the root to the first batch, with the table of windows stored. Before that, the
tables are created: for all episodes, and for a version with one more part.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import loader
from loader.dataset.names import hashes_of
from loader.dataset.publishing.commit import Pending, commit
from loader.dataset.publishing.publication_gate import NewKeys
from loader.dataset.shards.index import IndexFile, IndexPlace, index_bytes
from loader.dataset.shards.key_hashes import put_hashes
from loader.dataset.shards.part import SHARDS_ROW_GROUP_ROWS, SHARDS_SCHEMA, Part, ShardFile
from loader.dataset.tables.columns import KEYS_SCHEMA
from loader.dataset.tables.manifest import Change, GroupExtent, SamplesFile
from loader.dataset.tables.parquet import MAGIC_BYTES, put_table
from loader.dataset.tables.stats import column_stats
from loader.dataset.writing.run_samples import RunKeys
from loader.modalities.video.packet_table import index_packets

from .first_step import peak_bytes
from .latency_server import BUCKET, OPTIONS, latency_store
from .page import shown

DATASET, CAMERA, SYNC = "arm", "cam.mp4", "episode_sync"
LENGTHS = (300, 400, 470, 550, 630, 700, 800)
"""Rows of episodes, drawn at random: 550 on average."""
AT: dict[str, Any] = {CAMERA: [0], "observation.state.npy": [0], "action.npy": loader.rows(0, 50)}
DECODE = {CAMERA: loader.video()}
KEEPS = None, "keep.npy"
SLOW_S = 1.0
"""Latency at which rounds of requests are counted: longer than the work between two of them, on a busy machine too."""
CREATED = ("created: all episodes", "created: one more part")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--episodes", type=int, default=1_000_000)
    options.add_argument("--part", type=int, default=1_000, help="episodes of a part")
    options.add_argument("--batch", type=int, default=16, help="windows of a batch")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--latency-ms", type=float, default=20.0)
    options.add_argument("--folder", type=Path, help="keep the root here, or use the one that is here")
    options.add_argument("--out", type=Path)
    options.add_argument("--start", help=argparse.SUPPRESS)
    options.add_argument("--create", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.start or given.create:
        task = json.loads(given.start or given.create)
        print(json.dumps(start(**task) if given.start else create(**task)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary, "root")
        if not (folder / "penstock.json").exists():
            make_root(folder, given.episodes, given.part)
        starts = started(folder, given.batch, given.rounds, given.latency_ms / 1e3)
        lines = [*created(folder), "", *starts]
    command = (
        f"python -m benchmarks.episode_start --episodes {given.episodes} --batch {given.batch} "
        f"--rounds {given.rounds}"
    )
    where = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    text = "\n".join([f"`{command}` on {where}; medians, with ranges.", "", *lines, ""])
    if given.out:
        given.out.write_text(text)
    sys.stdout.write(text)
    return 0


def created(folder: Path) -> Iterator[str]:
    """Yield the lines about creating tables: of all episodes, and of a version with one more part."""
    yield "| tables | s | processor s | peak MiB |"
    yield "| --- | --- | --- | --- |"
    for keep in KEEPS:
        shutil.rmtree(folder / "windows", ignore_errors=True)
        for name, ref in zip(CREATED, ("1", "2"), strict=True):
            run = run_here("--create", url=str(folder), ref=f"{DATASET}@{ref}", keep=keep)
            words = "with keep" if keep else "without keep"
            yield (
                f"| {name}, {words}, {run['windows']:,} windows | {run['seconds']:.1f} | {run['cpu_s']:.1f} | "
                f"{run['mib']:.0f} |"
            )


def started(folder: Path, batch: int, rounds: int, latency_s: float) -> Iterator[str]:
    """Yield the lines about first batches. Their tables exist."""
    for keep in KEEPS:
        run_here("--create", url=str(folder), ref=f"{DATASET}@1", keep=keep)
    yield "| first batch | s | processor s | rounds | requests | MB read | peak MiB |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    with latency_store(folder, latency_s) as server, latency_store(folder, SLOW_S, record=True) as slow:
        for keep in KEEPS:
            for middle in (False, True):
                task = {"url": f"s3://{BUCKET}", "keep": keep, "middle": middle, "batch": batch}
                slow.recorded()
                run_here("--start", **task, endpoint=slow.options["endpoint_url"])
                in_turn = rounds_of(slow.recorded())
                runs = []
                for _ in range(rounds):
                    server.served()
                    run = run_here("--start", **task, endpoint=server.options["endpoint_url"])
                    requests, nbytes = server.served()
                    runs.append(run | {"requests": requests, "mb": nbytes / 1e6})
                figures = {"seconds": 2, "cpu_s": 2, "requests": 0, "mb": 1, "mib": 0}
                own = {name: shown([one[name] for one in runs], digits) for name, digits in figures.items()}
                yield (
                    f"| {'with' if keep else 'without'} keep, {'middle' if middle else 'first step'} | "
                    f"{own['seconds']} | {own['cpu_s']} | {in_turn} | {own['requests']} | {own['mb']} | {own['mib']} |"
                )


def rounds_of(recorded: Sequence[Mapping[str, Any]]) -> int:
    """Return how many requests follow one another: one begins a round if the round before has its first answer."""
    rounds, answered_s = 0, 0.0
    for at_s in sorted(one["at_s"] for one in recorded):
        if at_s >= answered_s:
            rounds, answered_s = rounds + 1, at_s + SLOW_S
    return rounds


def run_here(flag: str, **task: Any) -> dict[str, float]:
    """Return what a process of its own measured."""
    command = [sys.executable, "-m", "benchmarks.episode_start", flag, json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{flag} {task}: {done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def start(url: str, endpoint: str | None, keep: str | None, middle: bool, batch: int) -> dict[str, float]:
    """Return seconds and memory of the first batch of a process that has imported its modules."""
    with loader.Root("memory://small") as small:
        with small.write(DATASET) as writer:
            writer.add("0", episode(0, 40))
        first_batch(small, keep, False, 4)
    before = peak_bytes() / 2**20
    options = {**OPTIONS, "endpoint_url": endpoint} if endpoint else None
    begun, cpu = time.perf_counter(), time.process_time()
    with loader.Root(url, options=options) as root:
        n_windows = first_batch(root, keep, middle, batch)
        took, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    return {
        "seconds": took,
        "cpu_s": cpu_s,
        "mib": peak_bytes() / 2**20,
        "imports_mib": before,
        "windows": n_windows,
    }


def first_batch(root: loader.Root, keep: str | None, middle: bool, batch: int) -> int:
    """Read the first batch, or one in the middle of an epoch; return the number of windows."""
    windows = windows_of(root.open(f"{DATASET}@1"), keep)
    plan = loader.plan({DATASET: windows}, seed=7, global_batch=batch)
    with loader.Loader(plan, framework="numpy", decode=DECODE, workers=0, steps=plan_steps(plan) + 1) as read:
        if middle:
            read.load_state_dict(plan.state(plan_steps(plan) // 2))
        got = next(read)
    if got["action.npy"].shape[:2] != (batch, 50) or got[CAMERA].shape[:2] != (batch, 1):
        raise ValueError(f"the batch has actions {got['action.npy'].shape} and frames {got[CAMERA].shape}")
    return len(windows)


def plan_steps(plan: loader.Plan) -> int:
    """Return the steps of an epoch."""
    return max(1, len(plan.sources[DATASET].view) // plan.global_batch)


def create(url: str, ref: str, keep: str | None) -> dict[str, float]:
    """Return seconds, processor time and memory of windows whose table the root lacks."""
    with loader.Root(url) as root:
        version = root.open(ref)
        begun, cpu = time.perf_counter(), time.process_time()
        windows = windows_of(version, keep)
        took, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
        return {"seconds": took, "cpu_s": cpu_s, "mib": peak_bytes() / 2**20, "windows": len(windows)}


def windows_of(version: loader.Version, keep: str | None) -> Any:
    """Return the windows: a frame, a state, 50 actions."""
    return loader.windows(version.select(*AT), anchor="action.npy", at=AT, keep=keep)


def make_root(folder: Path, episodes: int, of_part: int) -> None:
    """Write a root with a version of so many episodes, and a version with one more part."""
    with loader.Root(str(folder)) as root:
        root.create()
        shards = first_part(root, of_part)
        publish(root, shards, 0, -(-episodes // of_part), of_part)
        publish(root, shards, -(-episodes // of_part), 1, of_part)


def episode(number: int, n: int, frames: bytes | None = None) -> dict[str, Any]:
    """Return an episode's fields. Its rows are kept at random, which no compression makes smaller."""
    rng, clock = np.random.default_rng(number), np.arange(n) * 10**9 // 30
    clip = clip_of(n) if frames is None else frames
    return {
        CAMERA: clip,
        f"{CAMERA}.packets": index_packets(clip),
        "action.npy": rng.random((n, 7), dtype=np.float32),
        "action.ns.npy": clock,
        "observation.state.npy": rng.random((n, 7), dtype=np.float32),
        "observation.state.ns.npy": clock,
        "keep.npy": rng.random(n) < 0.7,
    }


def clip_of(n: int) -> bytes:
    """Return a small video of n frames."""
    import io

    import av

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=30, options={"g": "10", "crf": "40"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for k in range(n):
            pixels = np.full((48, 64, 3), 5 * k % 256, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode(None))
    return out.getvalue()


def first_part(root: loader.Root, of_part: int) -> Sequence[ShardFile]:
    """Write the part whose shards all parts link to."""
    clips = {n: clip_of(n) for n in LENGTHS}
    lengths = np.random.default_rng(0).choice(LENGTHS, of_part).tolist()
    samples = ((f"{k:07d}", episode(k, n, clips[n])) for k, n in enumerate(lengths))
    part: Part = loader.write_part(root, root.begin("shards"), samples, groups={"keep.npy": SYNC})
    return part.shards


def publish(root: loader.Root, shards: Sequence[ShardFile], first: int, n: int, of_part: int) -> None:
    """Publish n parts of episodes: all of a publish but their shards, which are links."""
    txn = root.begin(DATASET)
    prefix, folder = f"data/{txn}/parts", Path(root.url.removeprefix("file://"))
    (folder / prefix).mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for shard in shards:
        place = IndexPlace.of(shard_row(shard))
        data = root.store.get(shard.index_path).data
        index = IndexFile(root.store, place, whole=True).read_group(0)
        pages = data[MAGIC_BYTES : MAGIC_BYTES + place.pages_nbytes]
        spans = {field: index.places[:, number] for number, field in enumerate(index.offset)}
        for number in range(first, first + n):
            stem = f"{prefix}/{shard.group}-{number:05d}"
            own = index_bytes(keys_of(number, of_part), spans, pages)
            at = IndexPlace.measure(f"{stem}.index.parquet", own, place.pages_nbytes)
            (folder / at.path).write_bytes(own)
            os.link(folder / shard.path, folder / f"{stem}.tar")
            part = {"part": f"{txn}-{number:05d}", "path": f"{stem}.tar"}
            rows.append(shard_row(shard) | part | at.row())
    rows.sort(key=lambda row: (row["part"], row["group"]))
    commit_parts(root, txn, prefix, rows, shards, first, n, of_part)


def commit_parts(
    root: loader.Root,
    txn: Any,
    prefix: str,
    rows: Sequence[dict[str, Any]],
    shards: Sequence[ShardFile],
    first: int,
    n: int,
    of_part: int,
) -> None:
    """Commit parts whose shards and indexes exist."""
    table = pa.Table.from_pylist(list(rows), schema=SHARDS_SCHEMA)
    keys = [key for number in range(first, first + n) for key in keys_of(number, of_part)]
    parts = np.repeat([f"{txn}-{number:05d}" for number in range(first, first + n)], of_part)
    whole = pa.table(
        {
            "part": parts.tolist(),
            "row": np.tile(np.arange(of_part), n),
            "key": keys,
            "w": np.arange(len(keys)),
        }
    )
    names = [name for name in KEYS_SCHEMA.names if name in whole.column_names]
    files = {"keys": whole.select(names), "metadata": whole.select(["part", "row", "w"])}
    extents = {
        shard.group: GroupExtent(
            field_nbytes={field: nbytes * n for field, nbytes in shard.field_nbytes.items()},
            n_parts=n,
            n_rows=len(keys),
            nbytes=shard.nbytes * n,
        )
        for shard in shards
    }
    change = Change(
        shards=put_table(root.store, f"{prefix}/shards.parquet", table, "shards", SHARDS_ROW_GROUP_ROWS),
        samples=tuple(
            SamplesFile(
                file=put_table(root.store, f"{prefix}/samples-{group}-0.parquet", own, f"samples-{group}"),
                group=group,
                columns={f.name: str(f.type) for f in own.schema if f.name not in ("part", "row")},
            )
            for group, own in files.items()
        ),
        stats=put_table(root.store, f"{prefix}/stats.parquet", column_stats(whole), "stats"),
        key_hashes=put_hashes(root.store, prefix, hashes_of(keys)),
        groups=extents,
        n_parts=n,
        n_rows=len(keys),
    )
    pending = Pending(dataset=DATASET, txn=str(txn), prefix=prefix, change=change, producer={})
    commit(root.store, root.log, pending, NewKeys(root.store, RunKeys.of(keys)))


def shard_row(shard: ShardFile) -> dict[str, Any]:
    """Return a shard's row of the shards table."""
    return {name: getattr(shard, name) for name in SHARDS_SCHEMA.names}


def keys_of(part: int, of_part: int) -> list[str]:
    """Return the keys of a part's episodes."""
    return [f"episode_{part * of_part + k:07d}" for k in range(of_part)]


if __name__ == "__main__":
    sys.exit(main())
