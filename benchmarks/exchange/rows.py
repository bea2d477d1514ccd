"""Measurements of the exchange: each function takes a folder and sizes, and gives rows of the page's table."""

import gc
import io
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import loader
from loader.storage import ObjectInfo, Store, open_store
from penstock.cli import main
from penstock.formats.reading.object_file import MOST_BYTES
from penstock.formats.registration.register import register
from penstock.formats.run_export import export

from ..latency_server import BUCKET, CREDENTIALS, Served, latency_store
from ..page import ratios
from ..rows import Aim
from ..rows import Row as Contest
from ..throughput import Bench, measure, say
from ..view.rows import Row
from . import documents, tars

SMALL = {"jpg": 300, "json": 100, "cls": 2}
"""Members of a sample whose headers are counted."""
PHOTO = {"jpg": 30_000, "cls": 2}
LARGE = {"mp4": 2_000_000}
LINK_GBITS = 5.0
"""A virtual machine of two cores seldom has a faster network."""
ON_DISK = 130_000
"""Samples of 30 KB whose import waits for the disk: 4 GB."""
AT_ONCE = 16
"""Archives that are read together, as at registration."""
LOADED = Contest(
    name="exchange",
    title="Images: raw bytes, registered where they lie",
    kind="images",
    samples=20_000,
    aims=(Aim(of="penstock, native", at_least=0.9),),
    limit="",
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    samples: int = 100_000
    """Samples of three small members, 1,000 an archive."""
    documents: int = 1_000_000
    """Documents of a Megatron dataset."""
    photos: int = 20_000
    """Samples of 30 KB that are imported and exported."""
    rounds: int = 3
    """Rounds of each contest."""


def megatron(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Documents by their index, on a disk."""
    n = sizes.documents
    place = documents.make(folder / f"documents-{n}", n)
    taken, busy, peak = [], [], []
    for number in range(sizes.rounds):
        before = time.process_time()
        taken.append(_seconds(partial(_registered, folder, str(place), f"documents-{number}", "megatron")))
        busy.append(time.process_time() - before)
        peak.append(_peak_mib())
    yield Row(
        what=f"register {n:,} documents of Megatron",
        values=taken,
        unit="s",
        goal=120 * n / 1e8,
        digits=1,
    )
    yield Row(what="- processor time", values=busy, unit="s", digits=1)
    yield Row(what="- memory of the process", values=peak, unit="MiB", digits=0)


def registration(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Archives on a disk, by their headers."""
    place = tars.make(folder / f"tars-{sizes.samples}", sizes.samples, 1000, SMALL)
    taken, busy, bare, peak = [], [], [], []
    for number in range(sizes.rounds):
        bare.append(_seconds(lambda: _read_all(open_store(str(place)))))
        before = time.process_time()
        taken.append(_seconds(partial(_registered, folder, str(place), f"disk-{number}")))
        busy.append(time.process_time() - before)
        peak.append(_peak_mib())
    yield Row(
        what=f"register {sizes.samples:,} samples x {len(SMALL)} members in {sizes.samples // 1000:,} tars",
        values=taken,
        unit="s",
        goal=30 * sizes.samples / 1e6,
        digits=1,
    )
    yield Row(what="- processor time", values=busy, unit="s", digits=1)
    yield Row(what="- a bare read of these archives", values=bare, unit="s", digits=1)
    yield Row(what="- memory of the process", values=peak, unit="MiB", digits=0)


def small_members(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """A bucket of 20 ms, whose members are read through: against one bare read of the same bytes, on two links."""
    n = 5 * sizes.photos
    name = f"small-{n}"
    tars.make(folder / "bucket" / name, n, 1000, PHOTO)
    for gbits, link in ((0.0, ""), (LINK_GBITS, f" and {LINK_GBITS:g} Gbit/s")):
        with (
            latency_store(folder / "bucket", gbits=gbits) as server,
            environment(server.options["endpoint_url"]),
        ):
            ratio, asked, rate = _against_a_read(folder, name, server, sizes.rounds)
        yield Row(
            what=f"register {n:,} members of 30 KB at 20 ms{link}",
            values=ratio,
            unit="x a bare read's time",
            goal=1.1,
        )
        yield Row(what="- bytes asked for, of all", values=asked, unit="x")
        yield Row(what="- the bare read", values=rate, unit="Gbit/s", digits=1)


def _against_a_read(
    folder: Path, name: str, server: Served, rounds: int
) -> tuple[list[float], list[float], list[float]]:
    """Of each round: time of a registration, of a bare read's; bytes it asked for, of all; Gbit/s of the read."""
    url = f"s3://{BUCKET}/{name}"
    store = open_store(url)
    nbytes = sum(info.nbytes for info in store.list())
    ratio, asked, rate = [], [], []
    for _ in range(rounds):
        bare = _seconds(lambda: _read_all(store))
        server.served()
        ratio.append(_seconds(partial(_registered, folder, url, name)) / bare)
        asked.append(server.served()[1] / nbytes)
        rate.append(8 * nbytes / bare / 1e9)
    return ratio, asked, rate


def large_members(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """A bucket of 20 ms, whose members are jumped over."""
    n = 200
    tars.make(folder / "bucket" / "large", n, 20, LARGE)
    with latency_store(folder / "bucket") as server, environment(server.options["endpoint_url"]):
        server.served()
        seconds = _seconds(lambda: _registered(folder, f"s3://{BUCKET}/large", "large"))
        requests, nbytes = server.served()
    yield Row(
        what=f"- register {n} members of 2 MB at 20 ms",
        values=[requests / n],
        unit="requests a member",
        goal=1.1,
    )
    yield Row(what="- its time", values=[seconds], unit="s")
    yield Row(what="- bytes asked for", values=[nbytes / 2**20], unit="MiB", digits=0)


def loading(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Trainings on registered bytes against a native version, and against the formats' own libraries."""
    (folder / "loading").mkdir(parents=True, exist_ok=True)
    bench = Bench(folder / "loading", ("penstock", "webdataset", "streaming"), sizes.photos / LOADED.samples)
    turns, _, failed = measure(bench, LOADED, max(5, sizes.rounds))
    native = "penstock, native"
    own = {"webdataset": "webdataset, 2 workers", "mds": "mosaicml-streaming, 2 workers"}
    for name in turns:
        if not name.startswith("penstock, registered"):
            continue
        yield Row(
            what=f"train on {name.removeprefix('penstock, ')}",
            values=ratios(turns, name, native),
            unit="x a native version's speed",
            goal=0.9,
            more_is_better=True,
        )
        if (peer := own.get(name.rpartition(" ")[2])) in turns:
            yield Row(
                what=f"train on {name.removeprefix('penstock, ')}",
                values=ratios(turns, name, peer),
                unit=f"x the speed of {peer}",
                digits=1,
            )
    native_rates = [one["samples"] / one["seconds"] for one in turns[native]]
    yield Row(what="- a native version, images of 30 KB", values=native_rates, unit="/s", digits=0)
    for name, why in {**bench.failed, **failed}.items():
        say(f"{name} does not take part: {why}")


def imports_of_disk(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Copies against `cp` of bytes that the disk has to give, and more than it takes in before it is asked to sync."""
    yield from _imports(folder, ON_DISK, sizes.rounds, ", from the disk", _evicted)


def imports(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Copies against `cp`, of bytes that lie in the page cache."""
    yield from _imports(folder, sizes.photos, sizes.rounds, "", lambda place: None)


def _imports(
    folder: Path, photos: int, rounds: int, whence: str, before_each: Callable[[Path], None]
) -> Iterator[Row]:
    """All synced, on one disk. before_each: called with the place ahead of each contestant's turn."""
    place = tars.make(folder / f"photos-{photos}", photos, 1000, PHOTO)
    out = folder / "copies"
    gc.collect()
    gc.freeze()  # `penstock import` has not imported what these benchmarks have
    for shuffle, goal in ((False, 0.9), (True, 0.45)):
        ratio, rate, theirs, busy = [], [], [], []
        for number in range(rounds):
            before_each(place)
            copied = synced(out, lambda: subprocess.run(["cp", "-r", str(place), str(out)], check=True))
            before_each(place)
            before = time.process_time()
            mine = synced(out, partial(_imported, out, place, shuffle))
            busy.append(time.process_time() - before)
            ratio.append(copied / mine)
            rate.append(nbytes_of(place) / mine / 1e6)
            theirs.append(nbytes_of(place) / copied / 1e6)
            say(f"import, shuffle={shuffle}: round {number + 1} of {rounds}")
        option = "- import --shuffle" if shuffle else "import --keep-order"
        yield Row(
            what=f"{option}, {photos:,} samples of 30 KB{whence}",
            values=ratio,
            unit="x cp's speed",
            goal=goal,
            more_is_better=True,
        )
        yield Row(what="- its speed", values=rate, unit="MB/s", digits=0)
        yield Row(what="- speed of cp", values=theirs, unit="MB/s", digits=0)
        yield Row(what="- its processor time", values=busy, unit="s", digits=1)
    gc.unfreeze()


def _evicted(place: Path) -> None:
    """Take files out of the page cache."""
    for path in sorted(path for path in place.rglob("*") if path.is_file()):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def exports(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """A version written as tars."""
    place = tars.make(folder / f"photos-{sizes.photos}", sizes.photos, 1000, PHOTO)
    root = folder / "exported-from"
    if not root.exists():
        _imported(root, place, False)
    version, out = loader.Root(root).open("photos@latest"), folder / "copies"
    rate = []
    for _ in range(sizes.rounds):
        out.mkdir(exist_ok=True)
        taken = synced(out, partial(export, version, "webdataset", open_store(str(out))), fresh=False)
        rate.append(nbytes_of(place) / taken / 1e6)
    yield Row(
        what=f"- export webdataset, {sizes.photos:,} samples of 30 KB", values=rate, unit="MB/s", digits=0
    )


def _registered(folder: Path, url: str, name: str, format: str = "webdataset") -> None:
    root = folder / "roots" / name
    shutil.rmtree(root, ignore_errors=True)
    register(loader.Root(root), format, url, "data")


def _imported(root: Path, place: Path, shuffle: bool) -> None:
    order = "--shuffle" if shuffle else "--keep-order"
    with redirect_stdout(io.StringIO()):
        status = main(["import", "webdataset", str(place), "photos", "--root", str(root), order])
    if status:
        raise RuntimeError(f"penstock import ended with status {status}")


def _read_all(store: Store) -> None:
    """Every object once, in pieces as large as a registration's."""

    def read(info: ObjectInfo) -> None:
        for offset in range(0, info.nbytes, MOST_BYTES):
            store.get_range(info.key, offset, min(MOST_BYTES, info.nbytes - offset))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(read, store.list()))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def synced(out: Path, work: Callable[[], object], fresh: bool = True) -> float:
    """Seconds until what was written is on the disk; it is deleted behind that."""
    if fresh:
        shutil.rmtree(out, ignore_errors=True)
    os.sync()
    start = time.perf_counter()
    work()
    os.sync()
    taken = time.perf_counter() - start
    shutil.rmtree(out)
    return taken


def nbytes_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class environment:
    """Credentials of the server, as a bucket's reader takes them."""

    def __init__(self, endpoint: str) -> None:
        self._set = {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}
        self._before: dict[str, str] = {}

    def __enter__(self) -> None:
        self._before = dict(os.environ)
        os.environ.update(self._set)

    def __exit__(self, *_: object) -> None:
        for name in self._set:
            os.environ.pop(name)
        os.environ.update({name: value for name, value in self._before.items() if name in self._set})
