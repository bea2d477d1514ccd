"""Read a batch of clips by their packets, and compare it with what whole files decode to."""

from dataclasses import dataclass

import numpy as np

import loader

FRAMES, START, SIZE_PX, SEED, MOST = 8, 12, (112, 112), 7, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipsRead:
    """read_bytes: what the batch took from the store; whole_bytes: of the files; equal: the frames are the same."""

    n_clips: int
    read_bytes: int
    whole_bytes: int
    equal: bool


def read_clips(version: loader.Version) -> ClipsRead | None:
    """One batch of up to 8 clips; None where the version has none that are long enough."""
    if "mp4" not in version.fields:
        return None
    view = version.select("mp4", where_present=True).where(f"n_frames >= {START + FRAMES}")
    if not len(view):
        return None
    plan = loader.plan({"clips": view}, seed=SEED, global_batch=min(MOST, len(view)))
    video = loader.video(frames=FRAMES, start=START, size=SIZE_PX)
    with loader.Loader(plan, decode={"mp4": video}, framework="numpy", rank=0, world_size=1) as batches:
        clips = batches.batch_at(0)["mp4"]
        read_bytes = int(batches.metrics()["fetched_bytes_total"])
    with loader.Loader(plan, decode=False, framework="numpy", rank=0, world_size=1) as batches:
        files = list(batches.batch_at(0)["mp4"])
    return ClipsRead(
        n_clips=len(files),
        read_bytes=read_bytes,
        whole_bytes=sum(map(len, files)),
        equal=all(np.array_equal(video(data), clip) for data, clip in zip(files, clips, strict=True)),
    )
