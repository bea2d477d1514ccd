"""The walk of docs/robots.md: import, train, SIGKILL, resume on two ranks, find a frozen camera, exclude it, export."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

import loader
from assets.featurizers import make
from examples import robots
from loader.dataset.log.start_notes import START_SUFFIX
from loader.modalities import encode
from loader.storage import open_store
from penstock.formats.run_export import export
from tests.servers.chromium import chromium
from tests.view.test_browser import PREFIX, Viewer

REPOSITORY = Path(__file__).parents[2]
STEPS, CRASH_AT, SAVE_EVERY = 8, 5, 2
RANKS = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"


def film(path: Path, pictures: Sequence[np.ndarray], codec: str = "libvpx-vp9") -> None:
    """Write uint8 [H, W, 3] frames of 30 Hz as mp4. VP9 codes each by itself, so equal ones have equal bytes."""
    own = {
        "libvpx-vp9": {
            "g": "1",
            "crf": "30",
            "b": "0",
            "deadline": "realtime",
            "cpu-used": "8",
            "lag-in-frames": "0",
        },
        "libx264": {"g": "8", "bf": "2", "crf": "23", "preset": "ultrafast"},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4") as out:
        stream = out.add_stream(codec, rate=30, options=own[codec])
        stream.pix_fmt = "yuv420p"
        stream.height, stream.width = pictures[0].shape[:2]
        for picture in pictures:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def frozen(pictures: Sequence[np.ndarray], first: int, stop: int) -> list[np.ndarray]:
    """Return the frames of a camera that repeats frame `first` until `stop`."""
    return [pictures[first if first <= n < stop else n] for n in range(len(pictures))]


def run_training(
    python: Sequence[str | Path], folder: Path, options: Sequence[str], ranks: Sequence[str] = ()
) -> "tuple[subprocess.CompletedProcess[str], dict[int, int]]":
    """Run examples/robots.py; return it, and step -> its ranks' digests, summed. python: interpreter, and a script."""
    program, *script = python
    command = [program, *ranks, *script, "--root", folder / "root", "--out", folder / "out", *options]
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
    )
    digests: dict[int, int] = defaultdict(int)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            facts = json.loads(line)
            assert math.isfinite(facts["loss"])
            digests[facts["step"]] = (digests[facts["step"]] + int(facts["digest"], 16)) % 2**64
    return done, dict(digests)


def kill_and_resume(
    python: Sequence[str | Path], folder: Path, place: Path, options: Sequence[str]
) -> loader.Plan:
    """Train, die, and resume on two ranks: each step has the digest of the plan, which is returned."""
    options = [*options, "--steps", str(STEPS), "--checkpoint-every", str(SAVE_EVERY)]
    killed, first = run_training(
        python, folder, ["--place", str(place), *options, "--crash-at", str(CRASH_AT)]
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list(first) == [*range(CRASH_AT + 1)]
    resumed, later = run_training(python, folder, options, RANKS)
    assert resumed.returncode == 0, resumed.stderr
    saved = CRASH_AT - CRASH_AT % SAVE_EVERY
    assert list(later) in (
        [*range(saved - SAVE_EVERY, STEPS)],
        [*range(saved, STEPS)],
    )  # the last save may be cut
    root = loader.Root(folder / "root")
    (name,) = {
        path.stem for path in (folder / "root/plans").glob("*.json") if not path.name.endswith(START_SUFFIX)
    }
    plan = loader.open_plan(root, name)
    with loader.Loader(plan, framework="numpy", workers=0) as batches:
        expected = {step: batches.batch_at(step).digest for step in range(STEPS)}
    assert first == {step: expected[step] for step in first}
    assert later == {step: expected[step] for step in later}
    return plan


def frozen_frames(version: loader.Version) -> dict[str, int]:
    """Return episode -> `n_frozen` of `episode_sync`, as docs/robots.md calls it."""
    sync = make("episode_sync", episode="action.npy")
    names = [
        name for name in version.fields if name == "action.npy" or name.endswith((".ns.npy", ".packets"))
    ]
    samples = version.select(*names)
    return {
        sample["__key__"]: sync("episode", {name: encode(name, sample[name]) for name in names}).columns[
            "n_frozen"
        ]
        for sample in samples
    }


def exclude_in_browser(folder: Path, version: str, key: str, marks: Sequence[str], picture: Path) -> None:
    """See the marks on an episode's page, take a screenshot, and exclude the episode by keyboard."""
    dataset, _, number = version.partition("@")
    with loader.Root(folder / "root") as root:
        opened = root.open(version)
        ordinal = opened.keys(np.arange(len(opened))).index(key)
    command = [
        sys.executable,
        "-m",
        "penstock",
        "view",
        version,
        "--root",
        str(folder / "root"),
        "--port",
        "0",
    ]
    server = subprocess.Popen(
        [*command, "--prefix", PREFIX, "--allow-writes"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with chromium(folder / "profile") as page:
            viewer = Viewer(page, address)
            viewer.open(f"/v/{dataset}/{number}/s/{ordinal}", "At the cursor")
            page.wait_until(
                "the episode stands", lambda: page.value_of("document.body.dataset.episodeReady === 'yes'")
            )
            label = page.value_of("document.querySelector('#faults')?.getAttribute('aria-label') ?? ''")
            assert all(mark in label for mark in marks), label
            page.wait_for(f"{len(marks)} frozen")
            page.screenshot(picture)
            viewer.press("b")
            page.wait_for("1 in the basket")
            viewer.press("x")
            page.wait_for("Exclude 1 sample")
            viewer.type("a frozen camera")
            viewer.press("Tab")
            viewer.type("ann")
            viewer.press("Enter")
            viewer.at(f"/v/{dataset}/{number}/diff/{int(number) + 1}")
            assert page.problems == []
    finally:
        server.terminate()
        server.communicate(timeout=300)


def walk_dataset(
    python: Sequence[str | Path],
    folder: Path,
    place: Path,
    options: Sequence[str],
    bad: tuple[str, str, int],
    check: Callable[[loader.Plan], None],
) -> loader.Version:
    """Walk from a LeRobot folder to an export in <folder>/export; return the version that it is of.

    bad: episode whose camera freezes, the camera, and the number of its equal frames. check: of the plan.
    """
    key, camera, n = bad
    plan = kill_and_resume(python, folder, place, options)
    check(plan)
    root = loader.Root(folder / "root")
    first = root.open("arm@1")
    counts = frozen_frames(first)
    assert counts == {**dict.fromkeys(counts, 0), key: n - 1}
    marks = [f"{n} frames of equal bytes, {camera}.mp4"]
    exclude_in_browser(folder, "arm@1", key, marks, folder / "frozen.png")
    rest = root.open("arm@latest")
    assert rest.name == "arm@2"
    assert {*rest.keys(np.arange(len(rest)))} == counts.keys() - {key}
    after = robots.prepare(
        root,
        robots.parsed(
            ["--root", str(folder / "root"), "--place", str(place), "--out", str(folder), *options]
        ),
    ).plan
    view = after.sources["arm"].view
    assert {one.partition("@")[0] for one in view.keys(np.arange(len(view)))} == counts.keys() - {key}
    done = export(rest, "lerobot", open_store(folder / "export"), lossy=True)
    assert (done.failures, [one["name"] for one in done.lost]) == ([], ["keys"])
    return rest


def digest(value: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor with its type and shape; frames count as bytes."""
    if value.dtype == torch.float32 and value.ndim >= 3:
        value = (value * 255).round().to(torch.uint8)
    data = np.ascontiguousarray(value.numpy())
    return hashlib.sha256(f"{data.dtype} {list(data.shape)}".encode() + data.tobytes()).hexdigest()


def policy_windows(
    version: loader.Version, deltas: Mapping[str, Sequence[float]]
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return (episode, row) -> what LeRobot's policies get of the window, values as digests. deltas: as LeRobot's."""
    fields = [f"{name}.mp4" if f"{name}.mp4" in version.fields else f"{name}.npy" for name in deltas]
    stacked = [
        name for name in deltas if f"{name}.npy" in fields or len(deltas[name]) > 1
    ]  # as LeRobotDataset does
    view = version.select(*fields)
    at = loader.delta_timestamps(view, deltas)
    windows = loader.windows(view, anchor="action.npy", at=at, text=("interjection", "subtask", "task"))
    plan = loader.plan({"own": windows}, seed=1, global_batch=4)
    out = {}
    with loader.Loader(plan, workers=0, epochs=1) as batches:
        for batch in batches:
            inputs = loader.to_lerobot(batch, stacked=stacked)
            for number, (_, key) in [(n, one) for n, one in enumerate(batch.ids) if one]:
                episode, _, row = key.partition("@")
                own: dict[str, Any] = {name: digest(inputs[name][number]) for name in deltas}
                masks = {f"{name}_is_pad": inputs[f"{name}_is_pad"][number] for name in deltas}
                own |= {
                    name: np.atleast_1d(mask).tolist() for name, mask in masks.items()
                }  # LeRobot keeps their time
                out[episode, int(row)] = {**own, "text": inputs["task"][number]}
    return out
