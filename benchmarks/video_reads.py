"""Random reads of 16 frames at 224 px: penstock and others, on an original and on its canonical clip.

    python -m benchmarks.video_reads [--rounds N] [--reads N] [--video FILE] [--corpus FOLDER] [--out FILE]

Every contestant has one thread, opens its file anew for each read (a training job reads from another video each
time), and gets the same frames. penstock reads bare packets of a real version on a local disk, the way its Loader does.
Two kinds of reads: 16 consecutive frames, and 16 frames each at a place of its own.

Beside speed, correctness: the share of frames that are, bit for bit, the frame of that number which the same library
shows when it decodes from the start (without resizing), over the videos of a corpus.
"""

import argparse
import hashlib
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields, read_parts
from loader.errors import Corrupt
from loader.modalities.image.crop import Framing, apply_turn
from loader.modalities.video.decode import read_bare, read_clip, turn_of_matrix
from loader.modalities.video.packet_decode import copy_packet, open_codec
from loader.modalities.video.packet_table import PacketTable, index_packets, read_packets
from loader.modalities.video.timeline import Timeline
from loader.run.part_reads.video_packet_reads import Readers, read_samples
from loader.run.recipe.decode import decode_sample
from loader.run.recipe.video_groups import video_groups

from . import sections
from .page import shown
from .video_peers import Frames, Peer, installed

SIZE, N_FRAMES = (224, 224), 16
OURS = "penstock, bare packets of the clip"
SAME_ORIGINAL = "penstock, bare packets of the original"
"""Reads the file that peers read: the rest of penstock's advantage is the clip's, with a keyframe every 12 frames."""
SAME_CLIP = "PyAV on the clip"
LIMIT = "limit: packets of the clip, only decoded"
LARGE_PX, LARGE_FRAME_PX = 1.5e9, 2**23
"""Videos with more pixels over all of their frames, or in one, take minutes with each library, and are left out."""

NOT_READ = (av.error.FFmpegError, RuntimeError, ValueError, LookupError, StopIteration)

Read = Callable[[Sequence[int], Sequence[Fraction]], Frames]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    media = os.environ.get("PENSTOCK_MEDIA")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--reads", type=int, default=8, help="reads per round, contestant and kind")
    options.add_argument("--video", type=Path, help="a long-GOP original; without it one is made")
    options.add_argument("--corpus", type=Path, default=Path(media) / "video" if media else None)
    options.add_argument("--out", type=Path, help="write the page here")
    options.add_argument("--page", action="store_true", help="write into docs/benchmarks.md")
    given = options.parse_args()
    lines = [
        "# Video reads",
        "",
        f"Made by `python -m benchmarks.video_reads --rounds {given.rounds} --reads {given.reads}"
        f"{f' --video {given.video.name}' if given.video else ''}` on "
        f"{platform.machine()}, Python {platform.python_version()}.",
        "",
        f"Processor time per read of {N_FRAMES} frames at {SIZE[0]} px, and times penstock's. One thread. Peers "
        "read the original; each read opens its file, from the page cache. A fair comparison is on one file: "
        f"{SAME_ORIGINAL!r} beside the peers, or {SAME_CLIP!r} beside {OURS!r}.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        original = given.video or make_original(Path(folder))
        lines += speed(Path(folder), original, given.rounds, given.reads)
    if given.corpus:
        lines += correctness(given.corpus)
    page = "\n".join(lines)
    if given.out or given.page:
        sections.write("benchmarks.video_reads", page, given.out)
    print(page)
    return 0


def make_original(folder: Path) -> Path:
    """40 s of 720p, as cameras and sites deliver it: x264's defaults, a keyframe every 250 frames, B-frames."""
    path = folder / "original.mp4"
    rng = np.random.default_rng(0)
    coarse = av.VideoFrame.from_ndarray(rng.integers(0, 256, (90, 160, 3)).astype(np.uint8), format="rgb24")
    scene = coarse.to_ndarray(format="rgb24", width=2560, height=1440)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "medium", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        for n in range(1000):
            y, x = int(300 + 280 * np.sin(n / 97)), int(600 + 560 * np.sin(n / 131))
            view = np.ascontiguousarray(scene[y : y + 720, x : x + 1280])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(view, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def make_clip(original: Path, path: Path) -> None:
    """All of it as one canonical clip: the settings of assets/media/clips/canonical.py, shorter side 256 px."""
    x264 = {"preset": "veryfast", "tune": "fastdecode", "g": "12", "bf": "0", "crf": "21", "qmax": "28"}
    with (
        av.open(str(original)) as source,
        av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as target,
    ):
        stream = source.streams.video[0]
        stream.thread_count = 1
        encoder = target.add_stream(
            "libx264", rate=stream.average_rate, options={**x264, "x264-params": "mbtree=0"}
        )
        encoder.height, encoder.width = 256, 2 * round(stream.width * 128 / stream.height)
        encoder.pix_fmt = "yuv420p"
        encoder.codec_context.time_base = encoder.time_base = stream.time_base
        for frame in source.decode(stream):
            small = frame.reformat(encoder.width, encoder.height, "yuv420p", interpolation="BICUBIC")
            small.pict_type = 0
            target.mux(encoder.encode(small))
        target.mux(encoder.encode(None))


def speed(folder: Path, original: Path, rounds: int, n_reads: int) -> list[str]:
    clip = folder / "clip.mp4"
    make_clip(original, clip)
    contestants: dict[str, Read] = {
        OURS: penstock(folder, clip.read_bytes()),
        LIMIT: limit(clip.read_bytes()),
        SAME_ORIGINAL: penstock(folder, original.read_bytes(), "originals"),
    }
    for name, peer in installed().items():
        contestants[name] = partial(peer.read, str(original), size=SIZE)
    contestants[SAME_CLIP] = partial(installed()["PyAV"].read, str(clip), size=SIZE)
    facts = [read_packets(index_packets(path.read_bytes())) for path in (original, clip)]
    clocks = [Timeline.of_table(table) for table in facts]
    n = min(map(len, clocks))
    rng = np.random.default_rng(1)
    seconds_of: dict[str, dict[str, list[float]]] = {}
    for kind, chosen in (
        ("consecutive", lambda: list(range(start := int(rng.integers(n - 16)), start + 16))),
        ("scattered", lambda: sorted(rng.integers(0, n, 16).tolist())),
    ):
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(rounds + 1):
            targets = [chosen() for _ in range(n_reads)]
            for name, read in contestants.items():
                clock = clocks[name in (OURS, LIMIT, SAME_CLIP)]
                took = timed(read, targets, clock)
                if number:  # the first round warms caches
                    seconds[name].append(took / n_reads)
                print(f"{kind}, round {number}, {name}: {took / n_reads * 1e3:.1f} ms", file=sys.stderr)
        seconds_of[kind] = seconds
    sizes = [f"{table.facts.nbytes / 1e6:.1f} MB" for table in facts]
    height, width = facts[0].facts.height_px, facts[0].facts.width_px
    gop = max(np.diff([*clocks[0].keys.tolist(), len(facts[0])]))
    return [
        *table(seconds_of),
        f"The original: {width} x {height} px, {len(clocks[0])} frames, up to {gop} to a keyframe, {sizes[0]}. "
        f"The clip: {sizes[1]}.",
        "",
    ]


def penstock(folder: Path, clip: bytes, dataset: str = "clips") -> Read:
    """The Loader's way from a version to an array: tables, packets, decode; without planning and collating."""
    root = loader.Root(folder / "root")
    with root.write(dataset, groups={"mp4.packets": "media_index"}) as writer:
        writer.add("clip", {"mp4": clip, "mp4.packets": index_packets(clip)})
    version = writer.version
    view, pins = version.select("mp4"), dict[str, str]()
    readers = Readers(
        fields=lambda wanted, bad: read_fields(version.store, wanted, pins=pins, on_corrupt=bad),
        parts=lambda wanted, bad: read_parts(version.store, wanted, pins=pins, on_corrupt=bad),
    )
    rng = np.random.default_rng(0)

    def read(frames: Sequence[int], times: Sequence[Fraction]) -> Frames:
        decoders: dict[str, Any] = {"mp4": loader.video(at=times, size=SIZE)}
        addresses = version.address(np.zeros(1, np.int64), ["mp4"])
        (data,) = read_samples(
            view, video_groups(view, decoders), decoders, addresses, lambda i, field: rng, readers
        )
        if isinstance(data, Corrupt):
            raise data
        found: Frames = decode_sample(data, addresses[0], decoders, lambda field: rng)["mp4"]
        return found

    return read


def limit(clip: bytes) -> Read:
    """FFmpeg's decoder on packets that are in memory already: no reading, checking, converting."""
    packets = read_packets(index_packets(clip))
    clock = Timeline.of_table(packets)
    view, nothing = memoryview(clip), np.empty((N_FRAMES, *SIZE, 3), np.uint8)

    def read(frames: Sequence[int], times: Sequence[Fraction]) -> Frames:
        codec = open_codec(packets.facts)
        for run in clock.runs(frames):
            codec.flush_buffers()
            for number in range(run.first, run.stop):
                body = view[packets.pos[number] :][: packets.size[number]]
                codec.decode(copy_packet(body, number, bool(packets.key[number])))
            codec.decode(None)
        return nothing

    return read


def timed(read: Read, targets: list[list[int]], clock: Timeline) -> float:
    """Processor seconds: what a machine that does other things as well does not change."""
    asked = [(frames, [clock.time_s(frame) for frame in frames]) for frames in targets]
    start = time.process_time()
    for frames, times in asked:
        shape = read(frames, times).shape
        if shape != (N_FRAMES, *SIZE, 3):
            raise ValueError(f"got {shape}")
    return time.process_time() - start


def table(seconds_of: dict[str, dict[str, list[float]]]) -> list[str]:
    """seconds_of: kind of frames -> contestant -> seconds per read, by round."""

    def cell(seconds: dict[str, list[float]], name: str) -> str:
        pairs = [theirs / ours for theirs, ours in zip(seconds[name], seconds[OURS], strict=True)]
        taken = f"{statistics.median(seconds[name]) * 1e3:.1f}"
        return taken if name == OURS else f"{taken}, {shown(pairs)}"

    lines = [
        f"| contestant | {' | '.join(f'{kind} frames, ms' for kind in seconds_of)} |",
        f"|{' --- |' * (len(seconds_of) + 1)}",
    ]
    for name in next(iter(seconds_of.values())):
        cells = [cell(seconds, name) for seconds in seconds_of.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def correctness(folder: Path, n_targets: int = 8) -> list[str]:
    """Share of frames that are those of the library's own decode from the start; of penstock's, those of PyAV's."""
    right: dict[str, list[int]] = {}
    for path in sorted(path for path in folder.iterdir() if path.suffix.lower() in (".mp4", ".mov")):
        data = path.read_bytes()
        try:
            packets = read_packets(index_packets(data))
        except loader.errors.DecodeFailed:
            continue  # no video in it
        clock = Timeline.of_table(packets)
        frame_px = packets.facts.width_px * packets.facts.height_px
        if frame_px > LARGE_FRAME_PX or frame_px * len(clock) > LARGE_PX:
            continue
        targets = np.random.default_rng(len(data)).integers(0, len(clock), n_targets).tolist()
        for name, (read, sequence) in readers_of(data, str(path), packets, clock).items():
            try:
                digests = [digest(frame) for frame in sequence()]
            except NOT_READ as error:
                digests = []
                print(f"{path.name}, {name}: {error}", file=sys.stderr)
            found = [is_right(read, digests, target) for target in targets]
            right.setdefault(name, []).extend(found)
            print(f"{path.name}, {name}: {sum(found)}/{len(found)}", file=sys.stderr)
    asked = max(map(len, right.values()), default=0)
    counts = ", ".join(f"{name} {sum(each)}" for name, each in right.items())
    return [f"Right, bit for bit, of {asked} frames of real videos: {counts}.", ""]


def readers_of(
    data: bytes, path: str, packets: PacketTable, clock: Timeline
) -> dict[str, tuple[Callable[[int], Frames], Callable[[], Iterator[Frames]]]]:
    """Name -> how to read one frame, and all from the start, in the stored size."""
    turn = turn_of_matrix(packets.facts.display_matrix)

    def ours(frame: int) -> Frames:
        bodies = {
            number: data[packets.pos[number] :][: packets.size[number]]
            for run in clock.runs([frame])
            for number in range(run.first, run.stop)
        }
        found: Frames | None = read_bare(packets, clock, bodies, [frame], Framing())
        if found is None:
            found = read_clip(data, lambda _: [frame])
        return found[0]

    def upright() -> Iterator[Frames]:
        return (apply_turn(frame, turn) for frame in installed()["PyAV"].sequence(path))

    def theirs(peer: Peer, frame: int) -> Frames:
        found: Frames = peer.read(path, [frame], [clock.time_s(frame)], None)[0]
        return found

    out: dict[str, tuple[Callable[[int], Frames], Callable[[], Iterator[Frames]]]] = {
        "penstock": (ours, upright)
    }
    for name, peer in installed().items():
        out[name] = (partial(theirs, peer), partial(peer.sequence, path))
    return out


def is_right(read: Callable[[int], Frames], digests: list[bytes], target: int) -> int:
    try:
        return int(target < len(digests) and digest(read(target)) == digests[target])
    except NOT_READ:
        return 0


def digest(frame: Frames) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(frame), digest_size=16).digest()


if __name__ == "__main__":
    raise SystemExit(main())
