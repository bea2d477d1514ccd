"""`python -m benchmarks.cluster`: nodes of a cluster over one bucket; writes a section of docs/benchmarks-stores.md.

Nodes are processes with a folder, a server and a rank each, on this machine. Bytes and requests
of the bucket do not depend on its cores.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from loader.run.ahead.read_choice import RANGES_STEPS

from .. import sections
from .cluster import SAMPLE_BYTES, cluster, make_root
from .costs import connection_memory_mb, page_costs
from .filled import LARGE_PHOTOS, SMALL_PHOTOS, filled_epoch, make_photos
from .namespaces import describe_links, refusal
from .near_saves import NBYTES, near_save_figures
from .replicas import checkpoint_reads

NODES = 8
SAMPLES = 3200
SHARE_SAMPLES = 26_600
SHARE_SAMPLE_BYTES = 24_000
SHARE_PAGE_BYTES = 2**15
"""So small that 20,000 pages are read in minutes; samples of less than a page would share requests across gaps."""
SHARE_BATCH = 16
QUIET_STEPS = 40
"""More than are read ahead."""
PAUSE_S = 0.05
"""Length of a training's step, in which the next ones are read ahead."""


PAGES_PER_CALL = (1, 16)
"""A batch that nothing was read ahead for asks for one; reading ahead sends a list to each owner."""


class Row(NamedTuple):
    """One line of the table."""

    what: str
    measured: str
    aim: str


def whole_set(bucket: Path, folder: Path, size: int, *, has_namespaces: bool = False) -> list[Row]:
    """Caches that hold the set together: two epochs."""
    rows = []
    with cluster(bucket, folder, NODES, None, has_namespaces=has_namespaces) as nodes:
        baseline, _, digests = _epochs(nodes.epoch, 2, size)
    rows.append(Row(f"{NODES} nodes that keep nothing: bytes of two epochs, in sets", _list(baseline), ""))
    with cluster(bucket, folder / "whole", NODES, size, has_namespaces=has_namespaces) as nodes:
        with_peers, requests, same = _epochs(nodes.epoch, 2, size)
    if digests != same:
        raise RuntimeError("batches differ with and without peers")
    rows.append(Row(f"{NODES} nodes with peers: bytes of two epochs, in sets", _list(with_peers), "1.05, 0"))
    rows.append(Row("requests for samples in the second epoch", str(requests[1]), "0"))
    return rows


def shares(bucket: Path, folder: Path, size: int) -> list[Row]:
    """Caches that hold a part of a set of 20,000 pages together; bytes in sets of the samples' own bytes."""
    many = folder / "pages"
    stored = make_root(many, SHARE_SAMPLES, SHARE_SAMPLE_BYTES, part_samples=SHARE_SAMPLES // NODES)
    unit = SHARE_SAMPLES * SHARE_SAMPLE_BYTES
    pages = stored // SHARE_PAGE_BYTES
    batch_bytes = SHARE_BATCH * SHARE_SAMPLE_BYTES
    ahead_bytes = RANGES_STEPS * batch_bytes
    rows = []
    measured: list[tuple[str, str, int | None]] = [("nothing is kept", "", None)]
    for share, aim in ((0.25, "0.77"), (0.5, "0.52"), (0.75, "0.27")):
        limit = int(share * stored / NODES)
        measured.append((f"caches for {share} of the set", aim, limit))
    for number, (what, aim, limit) in enumerate(measured):
        caches = folder / f"shares{number}"
        with cluster(
            many,
            caches,
            NODES,
            limit,
            batch=SHARE_BATCH,
            page_bytes=SHARE_PAGE_BYTES,
            memory_bytes=ahead_bytes,
            # By need, ranks make 4 to 35 batches ahead, which an epoch reads for the next one.
            prefetch_bytes=2 * batch_bytes,
        ) as nodes:
            # Ranks that never pause fall behind what is read ahead on two cores: the comparison would be of
            # how far each gets, not of what it reads.
            nbytes, _, _ = _epochs(partial(nodes.epoch, PAUSE_S), 3, unit)
        rows.append(Row(f"{pages:,} pages, {what}: bytes of the epochs, in sets", _list(nbytes), aim))
        shutil.rmtree(caches, ignore_errors=True)
    return rows


def kills(bucket: Path, folder: Path, size: int, *, has_namespaces: bool = False) -> list[Row]:
    """A server is killed in the second epoch, and comes back; later a rank is killed with its claims."""
    with cluster(bucket, folder / "kills", NODES, size, has_namespaces=has_namespaces) as nodes:
        for _ in range(nodes.steps_per_epoch):
            nodes.step()
            time.sleep(PAUSE_S)
        nodes.store.served()
        steps = [_timed(nodes.step) for _ in range(10)]
        usual_s = statistics.median(steps)
        victim = nodes.nodes[2]
        assert victim.server is not None
        victim.server.kill()
        victim.server.wait()
        after = [_timed(nodes.step) for _ in range(30)]
        down_requests, down_bytes = nodes.store.served()
        victim.serve()
        # The others probe the node again within a minute, and it must have what it had.
        back_s = _until_quiet(nodes.step, lambda: nodes.store.served()[0])
        assert nodes.nodes[3].rank is not None
        nodes.nodes[3].rank.kill()
        nodes.nodes[3].rank.wait()
        without_reader = [_timed(nodes.step) for _ in range(30)]
    return [
        Row(
            "slowest step after kill -9 of one server, above the median, s",
            f"{max(after) - usual_s:.3f}",
            "0.5",
        ),
        Row("bytes from the bucket in 30 steps without it, in sets", f"{down_bytes / size:.3f}", ""),
        Row("requests in these steps", str(down_requests), ""),
        Row("seconds after its return until the bucket is asked for nothing", f"{back_s:.1f}", "60"),
        Row(
            "slowest step after kill -9 of one reader, above the median, s",
            f"{max(without_reader) - usual_s:.3f}",
            "0.5",
        ),
    ]


def in_namespaces(bucket: Path, folder: Path, size: int) -> list[Row]:
    """The whole set and the kills, with a network namespace for each node and for the bucket."""
    places = folder / "namespaces"
    rows = whole_set(bucket, places, size, has_namespaces=True)
    rows += kills(bucket, places, size, has_namespaces=True)
    named = [Row(f"in namespaces: {row.what}", row.measured, row.aim) for row in rows if row.aim]
    links = Row("links of the namespaces", describe_links(), "")
    return [links, *named]


def costs(bucket: Path, folder: Path, size: int) -> list[Row]:
    """Processor time of a page from a peer and from the disk; memory of a server."""
    rows: list[Row] = []
    costs_per_call = page_costs(folder / "costs", PAGES_PER_CALL)
    for n, page in zip(PAGES_PER_CALL, costs_per_call, strict=True):
        call = "a page in a call"
        if n > 1:
            call = f"{n} pages in a list, as read ahead"
        rows += [
            Row(f"100 kB from the disk, {call}, processor time, us", f"{page.disk_us:.0f}", ""),
            Row(
                "the same from a peer: reader, server, us", f"{page.reader_us:.0f}, {page.server_us:.0f}", ""
            ),
            Row("both sides as a multiple of the disk's", f"{page.ratio:.1f}", "2.5"),
            Row(
                "the same by bare sockets, both sides, us",
                f"{page.sockets_us:.0f}",
                "",
            ),
        ]
    rows.append(
        Row(
            "memory of a server at 1,000 connections, MB",
            f"{connection_memory_mb(folder / 'memory'):.0f}",
            "100",
        )
    )
    return rows


def checkpoints(bucket: Path, folder: Path, size: int) -> list[Row]:
    """16 replicas on four nodes load one checkpoint."""
    reads = checkpoint_reads(folder / "checkpoints")
    return [
        Row(
            "16 replicas load a checkpoint: bytes without a cache, in checkpoints", f"{reads.without:.2f}", ""
        ),
        Row("through the caches of 4 nodes", f"{reads.through:.2f}", "1.05"),
        Row("from a near save, after the loss of the node that saved it", f"{reads.near:.4f}", "0"),
    ]


def near(bucket: Path, folder: Path, size: int) -> list[Row]:
    """Near checkpoints of four nodes beside steps of 50 ms."""
    figures = near_save_figures(folder / "near")
    mebibytes = NBYTES // 2**20
    counts = f"{figures.saved}, {figures.skipped}, {figures.failed}"
    return [
        Row(
            f"near checkpoints of {mebibytes} MiB a rank on 4 nodes: slowest step beside, over the slowest without",
            f"{figures.beside_near_s / figures.alone_s:.2f}",
            "1.10",
        ),
        Row(
            "the same, beside hashing of another program at that priority",
            f"{figures.beside_hashing_s / figures.alone_s:.2f}",
            "",
        ),
        Row("the same, beside checkpoints in a root", f"{figures.beside_root_s / figures.alone_s:.2f}", ""),
        Row(
            "copy of the state: near, root, s",
            f"{figures.near_copy_s:.2f}, {figures.root_copy_s:.2f}",
            "",
        ),
        Row("near checkpoints saved, skipped, failed", counts, ""),
    ]


def fill(bucket: Path, folder: Path, size: int) -> list[Row]:
    """The first epoch of photos after `penstock cache fill`, against local files."""
    rows: list[Row] = []
    for photos in (LARGE_PHOTOS, SMALL_PHOTOS):
        bucket_of_photos = folder / f"photos{photos.side_px}"
        nbytes = make_photos(bucket_of_photos, photos)
        epoch = filled_epoch(bucket_of_photos, folder / f"filled{photos.side_px}", photos)
        what = f"photos of {nbytes / 1000:.0f} kB after `cache fill`, bucket at 20 ms"
        by_processor = epoch.local_us / epoch.reader_us
        rows += [
            Row(f"{what}: speed, local files 1", f"{epoch.ratio:.2f}", "0.9"),
            Row("the same by the ranks' processor time", f"{by_processor:.2f}", "0.9"),
            Row(
                "processor time of a photo: local files; rank, servers, us",
                f"{epoch.local_us:.0f}; {epoch.reader_us:.0f}, {epoch.servers_us:.0f}",
                "",
            ),
            Row("requests to the bucket", f"{epoch.requests:.0f}", "0"),
        ]
        shutil.rmtree(bucket_of_photos)
    return rows


PARTS: dict[str, Callable[[Path, Path, int], list[Row]]] = {
    "whole": whole_set,
    "shares": shares,
    "kills": kills,
    "namespaces": in_namespaces,
    "costs": costs,
    "checkpoints": checkpoints,
    "fill": fill,
    "near": near,
}


def _epochs(
    epoch: Callable[[], tuple[int, int, list[int]]], n: int, size: int
) -> tuple[list[float], list[int], list[int]]:
    sets, requests, digests = [], [], []
    for _ in range(n):
        asked, nbytes, of_epoch = epoch()
        sets.append(nbytes / size)
        requests.append(asked)
        digests += of_epoch
    return sets, requests, digests


def _timed(step: Callable[[], object]) -> float:
    time.sleep(PAUSE_S)
    begun_s = time.perf_counter()
    step()
    return time.perf_counter() - begun_s


def _until_quiet(step: Callable[[], object], requests: Callable[[], int]) -> float:
    """Read steps until QUIET_STEPS in a row ask the bucket for nothing; return the seconds until the first of them."""
    begun_s = time.monotonic()
    quiet_s = begun_s
    quiet = 0
    while quiet < QUIET_STEPS and time.monotonic() - begun_s < 120:
        _timed(step)
        if requests():
            quiet = 0
            quiet_s = time.monotonic()
        else:
            quiet += 1
    return quiet_s - begun_s


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def page(rows: Sequence[Row]) -> str:
    """Return the section."""
    lines = [
        "## Nodes of a cluster",
        "",
        f"{NODES} nodes of one rank each, {SAMPLES:,} samples of {SAMPLE_BYTES // 1000} kB in a shuffle, batches of 4, "
        f"5 ms of latency: `python -m benchmarks.cluster`. The shares: {SHARE_SAMPLES:,} samples of "
        f"{SHARE_SAMPLE_BYTES // 1000} kB, pages of {SHARE_PAGE_BYTES // 2**10} KiB, batches of {SHARE_BATCH}, steps "
        f"of {PAUSE_S:g} s; {RANGES_STEPS} steps are read ahead, two batches made.",
        "",
        "| what | measured | aim |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {row.what} | {row.measured} | {row.aim} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the parts, and write the section if all were measured."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--parts", default=",".join(PARTS), help=f"of: {', '.join(PARTS)}")
    options.add_argument("--samples", type=int, default=SAMPLES)
    options.add_argument("--out", type=Path, help="write here instead of docs/benchmarks-stores.md")
    arguments = options.parse_args()
    parts = arguments.parts.split(",")
    reason = refusal()
    if "namespaces" in parts and reason:
        options.error(f"{reason}: leave the part namespaces out of --parts")
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    try:
        size = make_root(folder / "bucket", arguments.samples)
        rows: list[Row] = []
        for name in parts:
            for row in PARTS[name](folder / "bucket", folder, size):
                print(f"{row.what}: {row.measured} (aim {row.aim})", flush=True)
                rows.append(row)
        if arguments.out or arguments.parts == ",".join(PARTS):
            sections.write("benchmarks.cluster", page(rows), arguments.out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
