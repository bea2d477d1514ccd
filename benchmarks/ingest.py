"""Video ingest: audit and canonical cut against ffmpeg's command line making the same clips, and PySceneDetect with it.

    python -m benchmarks.ingest [--rounds N] [--minutes M] [--video FILE] [--peers PYTHON] [--out FILE]

What is compared is the processor's time of one 720p video without sound, so a busy machine changes little: ours is all
that a pipeline's workers do (fetch, audit with every measure in the media table, cut, packet tables, the comparison of
clips with their source); ffmpeg's decodes, scales with the same flags and encodes with the same x264 settings, one
thread each. ffmpeg audits nothing. PySceneDetect (benchmarks/requirements.txt, in an environment of its own) finds the
shots with its content detector and ffmpeg cuts them. A worker lives for many videos, so ours has run once before.

Then both cores: several videos through LocalCompute, the share of the time that they work, and the memory of a worker.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av

from assets.media.policy import CutPolicy, VideoPolicy
from penstock.compute.pool import LocalCompute

from . import sections
from .ingest_work import ingest, ingest_in_worker, requests, warm
from .page import judged, shown
from .video_reads import make_original

CLIP_S, N_CLIPS, WIDTH, AIM = 2.5, 8, 456, 0.9
X264 = ["-c:v", "libx264", "-threads", "1", "-preset", "veryfast", "-tune", "fastdecode", "-crf", "21"]
X264 += ["-qmax", "28", "-g", "12", "-bf", "0", "-x264-params", "mbtree=0", "-pix_fmt", "yuv420p"]
SCALE = f"scale={WIDTH}:256:flags=bicubic+accurate_rnd"
FIND_SHOTS = (
    "import sys; from scenedetect import detect, ContentDetector; import cv2; cv2.setNumThreads(1); "
    "print(*[s.seconds for s, _ in detect(sys.argv[1], ContentDetector())][1:])"
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument(
        "--minutes", type=float, default=10, help="length of the video; a shorter one is repeated"
    )
    options.add_argument("--video", type=Path, help="720p; without it one is made")
    options.add_argument("--peers", type=Path, help="a Python that has scenedetect")
    options.add_argument("--out", type=Path, help="write the page here")
    options.add_argument("--page", action="store_true", help="write into docs/benchmarks-pipeline.md")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        video = repeated(given.video or make_original(folder), folder / "source.mp4", given.minutes * 60)
        lines = [
            "# Video ingest",
            "",
            f"Made by `python -m benchmarks.ingest --rounds {given.rounds} --minutes {given.minutes:g}"
            f"{f' --video {given.video.name}' if given.video else ''}` on {platform.machine()}, Python "
            f"{platform.python_version()}, of {facts(video)}.",
            "",
            *speed(folder, video, given.rounds, given.peers),
            *both_cores(folder, video),
        ]
    page = "\n".join([*lines, ""])
    if given.out or given.page:
        sections.write("benchmarks.ingest", page, given.out)
    print(page)
    return 0


def repeated(source: Path, target: Path, seconds: float) -> Path:
    """The picture of a video, packet for packet, again and again until it is as long."""
    with av.open(str(source)) as probe:
        stream = probe.streams.video[0]
        length_s = float((stream.duration or 0) * (stream.time_base or 0))
    options = ["-stream_loop", str(max(0, round(seconds / length_s) - 1)), "-i", str(source)]
    subprocess.run([*ffmpeg(), *options, "-map", "0:v:0", "-c", "copy", str(target)], check=True)
    return target


def facts(video: Path) -> str:
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        seconds = float((stream.duration or 0) * (stream.time_base or 0))
        size = f"{stream.width} x {stream.height} px"
        return f"{seconds:.0f} s of {stream.codec_context.name}, {size}, {stream.frames} frames"


def ffmpeg() -> list[str]:
    return ["ffmpeg", "-v", "error", "-y", "-threads", "1", "-filter_threads", "1"]


def processor_s() -> float:
    """User and system time of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def penstock(folder: Path, video: Path, name: str, policy: VideoPolicy) -> Callable[[], None]:
    audit, cut = requests(folder, video, CutPolicy(video=policy), name)

    def run() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            ingest(replace(audit, scratch=scratch), replace(cut, scratch=scratch))

    return run


def ffmpeg_all(folder: Path, video: Path, at_s: list[float] | None = None) -> Callable[[], None]:
    """Every window of CLIP_S, or every stretch between the given times."""

    def run() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as clips:
            if at_s is None:
                split = ["-force_key_frames", f"expr:gte(t,n_forced*{CLIP_S})", "-segment_time", str(CLIP_S)]
            else:
                times = ",".join(f"{at:.3f}" for at in at_s)
                split = ["-force_key_frames", times, "-segment_times", times]
            command = [*ffmpeg(), "-i", str(video), "-an", "-vf", SCALE, *X264, *split, "-f", "segment"]
            command += ["-reset_timestamps", "1", "-segment_format_options", "movflags=+faststart"]
            subprocess.run([*command, f"{clips}/%04d.mp4"], check=True)

    return run


def ffmpeg_some(folder: Path, video: Path) -> Callable[[], None]:
    """N_CLIPS windows, spread as VideoPolicy spreads them; nothing else is scaled or encoded."""
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        possible = int(float((stream.duration or 0) * (stream.time_base or 0)) // CLIP_S)
    starts = [number * possible // N_CLIPS * CLIP_S for number in range(N_CLIPS)]
    names = "".join(f"[a{number}]" for number in range(N_CLIPS))
    graph = [f"[0:v]split={N_CLIPS}{names}"]
    graph += [
        f"[a{number}]trim={start}:{start + CLIP_S},setpts=PTS-STARTPTS,{SCALE}[o{number}]"
        for number, start in enumerate(starts)
    ]

    def run() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as clips:
            command = [*ffmpeg(), "-i", str(video), "-an", "-filter_complex", ";".join(graph)]
            for number in range(N_CLIPS):
                target = f"{clips}/{number}.mp4"
                command += ["-map", f"[o{number}]", *X264, "-movflags", "+faststart", target]
            subprocess.run(command, check=True)

    return run


def scenedetect(folder: Path, video: Path, python: Path) -> Callable[[], None]:
    """Find shots, cut each of them."""

    def run() -> None:
        found = subprocess.run(
            [str(python), "-c", FIND_SHOTS, str(video)], check=True, capture_output=True, text=True
        )
        ffmpeg_all(folder, video, [float(at) for at in found.stdout.split()])()

    return run


def speed(folder: Path, video: Path, rounds: int, peers: Path | None) -> list[str]:
    every = VideoPolicy(max_clips=None)
    shots = VideoPolicy(units="shots", clip_s=60, max_clips=None)
    races = {
        f"{N_CLIPS} clips of {CLIP_S} s": {
            "penstock": penstock(folder, video, "some", VideoPolicy(max_clips=N_CLIPS)),
            "ffmpeg": ffmpeg_some(folder, video),
        },
        f"all of it in clips of {CLIP_S} s": {
            "penstock": penstock(folder, video, "all", every),
            "ffmpeg": ffmpeg_all(folder, video),
        },
    }
    if peers is not None:
        races["all of it by shots"] = {
            "penstock": penstock(folder, video, "shots", shots),
            "PySceneDetect and ffmpeg": scenedetect(folder, video, peers),
        }
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        hours = float((stream.duration or 0) * (stream.time_base or 0)) / 3600
    lines = [
        f"Hours of video per hour of one core; ffmpeg audits nothing. The aim: {AIM} of ffmpeg.",
        "",
        "| work | penstock | peer | penstock is faster by |",
        "| --- | --- | --- | --- |",
    ]
    for work, runners in races.items():
        took: dict[str, list[float]] = {name: [] for name in runners}
        runners["penstock"]()  # a worker lives for many videos: what it imports does not count
        for number in range(rounds):
            for name, run in runners.items():
                before = processor_s()
                run()
                took[name].append(processor_s() - before)
                print(f"{work}, round {number}, {name}: {took[name][-1]:.1f} s", file=sys.stderr, flush=True)
        (peer,) = took.keys() - {"penstock"}
        ours, theirs = took["penstock"], took[peer]
        ratios = [other / own for other, own in zip(theirs, ours, strict=True)]
        own, other = (f"{hours * 3600 / statistics.median(values):.1f}" for values in (ours, theirs))
        ratio = judged(shown(ratios), statistics.median(ratios) >= AIM)
        lines.append(f"| {work} | {own} | {other} ({peer}) | {ratio} |")
    return [*lines, ""]


def both_cores(folder: Path, video: Path, n_videos: int = 8) -> list[str]:
    """Workers on both cores."""
    policy = CutPolicy(video=VideoPolicy(max_clips=N_CLIPS))
    work = [requests(folder, video, policy, f"{video.stem}-{number}") for number in range(n_videos)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with _engine() as engine:
        list(engine.map(warm, [0, 1], timeout_s=60))
        start = time.perf_counter()
        outcomes = list(engine.map(ingest_in_worker, work, timeout_s=3600))
        took = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    failed = [outcome.error for outcome in outcomes if outcome.value is None]
    if failed:
        raise SystemExit(f"a worker failed: {failed[0]}")
    memory = max(outcome.value or 0 for outcome in outcomes)
    return [
        f"{n_videos} such videos keep {used / (2 * took):.0%} of {os.cpu_count()} cores at work; the largest worker "
        f"has {memory} MiB.",
        "",
    ]


class _engine:
    """LocalCompute with a worker per core, closed at the end."""

    def __enter__(self) -> LocalCompute:
        self._made = LocalCompute(workers=2)
        return self._made

    def __exit__(self, *_: object) -> None:
        self._made.close()


if __name__ == "__main__":
    raise SystemExit(main())
