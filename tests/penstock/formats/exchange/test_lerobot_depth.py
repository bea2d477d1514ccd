"""Depth maps of LeRobot: 12 bits stay 12 bits from import to training and back, and become LeRobot's distances."""

import io
import json
import math
from pathlib import Path

import av
import numpy as np
import pytest
import torch

import loader
from loader.errors import InvalidRuntime, InvalidStore, LossyExport
from loader.modalities.video.packet_table import index_packets
from loader.storage import open_store
from penstock.formats.lerobot.lerobot_registered import register_lerobot
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from penstock.view.episodes.episode_record import episode_record
from penstock.view.episodes.open_episode import open_episode
from penstock.view.inspect.version_record import sample_fields as names_of
from tests.penstock.formats.builders.lerobot_files import CAMERA, LENGTHS, OTHER, v21, v30
from tests.refusals import refusal

SIDE = 64
SCALE = {"video.depth_min": 0.01, "video.depth_max": 10.0, "video.shift": 3.5, "video.use_log": True}
DEPTH = {
    "is_depth_map": True,
    "depth_unit": "mm",
    "video.codec": "hevc",
    "video.pix_fmt": "gray12le",
    **SCALE,
}
DELTAS = {"action": [0.0], CAMERA: [-1 / 30, 0.0]}


def depth_codes(episode: int) -> np.ndarray:
    """uint16 [frames, 64, 64]: each frame has each code of 12 bits once, at a place of its own."""
    frame = np.arange(LENGTHS[episode])[:, None, None] + 10 * episode
    pixel = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    codes: np.ndarray = ((pixel + 97 * frame) % 4096).astype(np.uint16)
    return codes


def depth_video(codes: np.ndarray, codec: str = "libx265", pix_fmt: str = "gray12le") -> bytes:
    """An mp4 of these frames without loss, 30 a second."""
    # Keyframes only: x265 loses some codes of 12 bits between frames, lossless=1 or not.
    options = {"x265-params": "keyint=1:lossless=1:log-level=none"}
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream(codec, rate=30, options=options if codec == "libx265" else {})
        stream.width, stream.height, stream.pix_fmt = SIDE, SIDE, pix_fmt
        for frame in codes:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, pix_fmt)))
        out.mux(stream.encode(None))
    return file.getvalue()


def dataset(folder: Path, info: dict[str, object] | None = None) -> Path:
    """A dataset of v2.1 whose camera is a depth map."""
    v21(folder, cameras=[CAMERA])
    for episode in range(len(LENGTHS)):
        path = folder / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4"
        path.write_bytes(depth_video(depth_codes(episode)))
    change_info(folder, DEPTH if info is None else info)
    return folder


def change_info(folder: Path, info: dict[str, object], shape: tuple[int, ...] = (SIDE, SIDE, 1)) -> None:
    path = folder / "meta/info.json"
    whole = json.loads(path.read_text())
    whole["features"][CAMERA] |= {"shape": list(shape), "info": info}
    path.write_text(json.dumps(whole))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset(tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module", params=["v21", "v30"])
def place(request: pytest.FixtureRequest, old: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "v21":
        return old
    new = v30(tmp_path_factory.mktemp("new"), old, cameras=[CAMERA])
    change_info(new, DEPTH)
    return new


def import_version(root: loader.Root, folder: Path, name: str = "arm") -> loader.Version:
    assert import_place(root, "lerobot", open_store(folder), name).failures == []
    return root.open(name)


def window_batch(version: loader.Version, camera: str = f"{CAMERA}.mp4", **options: object) -> loader.Batch:
    """Every window of the version: the frame before its row, and its own."""
    at = {"observation.state.npy": loader.rows(0, 1), camera: loader.rows(-1, 1)}
    windows = loader.windows(version.select(*at), anchor="observation.state.npy", at=at)
    plan = loader.plan({"arm": windows}, seed=1, global_batch=sum(LENGTHS))
    with loader.Loader(plan, steps=1, **{"workers": 0, **options}) as batches:
        (batch,) = batches
    return batch


def expected_codes(batch: loader.Batch) -> np.ndarray:
    """uint16 [B, 2, 64, 64, 1]: the codes of a batch's frames."""
    out = []
    for _, key in batch.ids:
        episode, row = key.removeprefix("episode_").split("@")
        codes = depth_codes(int(episode))
        out.append(codes[[max(0, int(row) - 1), int(row)]])
    return np.stack(out)[..., None]


def metres(codes: np.ndarray) -> np.ndarray:
    """LeRobot's distances by its formula, float64."""
    low, high = math.log(0.01 + 3.5), math.log(10.0 + 3.5)
    return np.clip(np.exp(codes / 4095 * (high - low) + low) - 3.5, 0.01, 10.0)


def check(version: loader.Version, camera: str = f"{CAMERA}.mp4") -> None:
    """Frames are the codes, and LeRobot's distances in mm and m."""
    batch = window_batch(version, camera)
    codes = expected_codes(batch)
    assert batch[camera].dtype == torch.uint16
    assert np.array_equal(batch[camera].numpy(), codes)
    depth = loader.to_lerobot(batch)[CAMERA]
    exact = metres(codes.astype(np.float64)).transpose(0, 1, 4, 2, 3)
    assert depth.dtype == torch.float32
    assert depth.shape == (sum(LENGTHS), 2, 1, SIDE, SIDE)
    assert np.abs(depth.numpy() - exact * 1000).max() <= 0.51
    assert (depth == depth.round()).all()
    in_metres = loader.to_lerobot(batch, depth_unit="m")[CAMERA]
    assert np.abs(in_metres.numpy() - exact).max() < 1e-4
    assert set(loader.to_lerobot(batch)) == {
        "observation.state",
        "observation.state_is_pad",
        CAMERA,
        f"{CAMERA}_is_pad",
        "frame_index",
        "timestamp",
    }


def test_depth_keeps_its_codes_from_import_to_export_and_back(place: Path, tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    version = import_version(root, place)
    check(version)
    assert export(version, "lerobot", open_store(tmp_path / "out"), lossy=True).samples == len(LENGTHS)
    feature = json.loads((tmp_path / "out/meta/info.json").read_text())["features"][CAMERA]
    assert feature["shape"] == [SIDE, SIDE, 1]
    assert feature["info"] == DEPTH
    check(import_version(root, tmp_path / "out", "again"))


def test_registered_depth_keeps_its_codes(place: Path, tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    version = register_lerobot(root, open_store(place), "arm").version
    check(version, f"{CAMERA}.run")


def test_whole_clips_and_worker_processes_give_the_codes_too(old: Path, tmp_path: Path) -> None:
    version = import_version(loader.Root(tmp_path / "root"), old)
    processes = window_batch(version, workers=1, framework="numpy")
    assert np.array_equal(processes[f"{CAMERA}.mp4"], expected_codes(processes))
    plan = loader.plan({"arm": version.select(f"{CAMERA}.mp4")}, seed=1, global_batch=len(LENGTHS))
    decode = {f"{CAMERA}.mp4": loader.video(frames=2, start=1)}
    with loader.Loader(plan, workers=0, steps=1, decode=decode, framework="numpy") as batches:
        (batch,) = batches
    for clip, (_, key) in zip(batch[f"{CAMERA}.mp4"], batch.ids, strict=True):
        episode = int(key.removeprefix("episode_"))
        assert np.array_equal(clip[..., 0], depth_codes(episode)[1:3])


def test_viewer_shows_depth_by_the_range_of_each_frame(old: Path, tmp_path: Path) -> None:
    version = import_version(loader.Root(tmp_path / "root"), old)
    episode = open_episode(version, 0, names_of(version, [0])[0])
    assert np.array_equal(episode.frame(f"{CAMERA}.mp4", 2)[..., 0], depth_codes(0)[2])
    (camera,) = episode_record(episode).cameras
    assert camera.format == "hevc 64 x 64, gray12le, each frame shown from its least to its largest value"


def test_linear_scale_is_applied(old: Path, tmp_path: Path) -> None:
    linear = {
        **DEPTH,
        "video.use_log": False,
        "video.depth_min": 1,
        "video.depth_max": 5.095,
        "video.shift": 0,
    }
    folder = dataset(tmp_path / "own", linear)
    batch = window_batch(import_version(loader.Root(tmp_path / "root"), folder))
    depth = loader.to_lerobot(batch)[CAMERA].numpy()
    assert np.array_equal(depth, expected_codes(batch).transpose(0, 1, 4, 2, 3) + np.float32(1000))


@pytest.mark.parametrize(
    "wrong",
    [
        {"video.depth_max": 0.01},
        {"video.depth_min": -1.0},
        {"video.depth_max": float("inf")},
        {"video.depth_min": "near"},
        {"video.depth_min": True},
        {"video.shift": -0.01},
        {"video.shift": None},
        {"video.use_log": 1},
    ],
)
def test_impossible_scale_is_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    folder = v21(tmp_path / "own", cameras=[CAMERA])
    change_info(folder, {**DEPTH, **wrong})
    numbers = {**DEPTH, **wrong}
    given = [4095, *(numbers[name] for name in SCALE)]
    with refusal(InvalidStore, what="depth", where=f"meta/info.json: feature {CAMERA!r}", given=given):
        import_version(loader.Root(tmp_path / "root"), folder)


def test_depth_without_a_scale_is_codes_that_to_lerobot_refuses(tmp_path: Path) -> None:
    bare = {name: value for name, value in DEPTH.items() if name not in SCALE}
    version = import_version(loader.Root(tmp_path / "root"), dataset(tmp_path / "own", bare))
    batch = window_batch(version)
    assert np.array_equal(batch[f"{CAMERA}.mp4"].numpy(), expected_codes(batch))
    with refusal(InvalidRuntime, what=f"{CAMERA}.mp4", accepted="a fact 'depth', or 8 bits"):
        loader.to_lerobot(batch)
    gray = window_batch(version, decode={f"{CAMERA}.mp4": loader.video(bits=8)})
    shown = loader.to_lerobot(gray)[CAMERA]
    assert shown.shape[2] == 3
    assert float(shown.max()) == 1


def test_depth_decoded_to_8_bits_gives_no_distances(old: Path, tmp_path: Path) -> None:
    version = import_version(loader.Root(tmp_path / "root"), old)
    batch = window_batch(version, decode={f"{CAMERA}.mp4": loader.video(bits=8)})
    with refusal(InvalidRuntime, what=f"{CAMERA}.mp4", accepted="gray frames of more than 8 bits"):
        loader.to_lerobot(batch)
    with refusal(InvalidRuntime, what="depth_unit", given="cm"):
        loader.to_lerobot(batch, depth_unit="cm")  # type: ignore[arg-type]


def test_sources_of_several_scales_mix(old: Path, tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    near = {**DEPTH, "video.depth_max": 4.105, "video.use_log": False}
    far = import_version(root, old, "far")
    close = import_version(root, dataset(tmp_path / "own", near), "close")
    camera = f"{CAMERA}.mp4"
    at = {"observation.state.npy": loader.rows(0, 1), camera: loader.rows(0, 1)}
    sources = {
        version.dataset: loader.windows(version.select(*at), anchor="observation.state.npy", at=at)
        for version in (far, close)
    }
    plan = loader.plan(sources, seed=1, global_batch=16)
    with loader.Loader(plan, workers=0, steps=1) as batches:
        (batch,) = batches
    depth = loader.to_lerobot(batch, depth_unit="m")[CAMERA][:, 0].numpy()
    names = [source for source, _ in batch.ids]
    assert set(names) == {"far", "close"}
    for name, frame, codes in zip(names, depth, batch[camera].numpy()[:, 0, :, :, 0], strict=True):
        exact = metres(codes.astype(np.float64)) if name == "far" else 0.01 + codes / 1000
        assert np.abs(frame - exact).max() < 1e-4


def test_colour_of_16_bits_is_shown_from_0_to_1(tmp_path: Path) -> None:
    folder = v21(tmp_path / "own", cameras=[OTHER])
    version = import_version(loader.Root(tmp_path / "root"), folder)
    camera = f"{OTHER}.mp4"
    deep = window_batch(version, camera, decode={camera: loader.video(bits=16)})
    plain = window_batch(version, camera)
    shown, known = loader.to_lerobot(deep)[OTHER], loader.to_lerobot(plain)[OTHER]
    assert deep[camera].dtype == torch.uint16
    assert float((shown - known).abs().max()) < 0.02


def depth_version(root: loader.Root, data: bytes, fact: dict[str, object] | None, n: int) -> loader.Version:
    """An episode without LeRobot's metadata."""
    facts = {} if fact is None else {"facts": {f"{CAMERA}.mp4": {"depth": fact}}}
    ns = np.arange(n) * 10**9 // 30
    with root.write("own", **facts) as writer:
        fields = {
            "action.npy": np.zeros((n, 2), np.float32),
            "action.ns.npy": ns,
            f"{CAMERA}.mp4": data,
            f"{CAMERA}.mp4.packets": index_packets(data),
        }
        writer.add("episode_000000", fields)
    return root.open("own")


FACT = {"max_code": 4095, "min_m": "0.01", "max_m": "10.0", "shift_m": "3.5", "is_log": True}


def test_export_declares_depth_that_a_fact_describes(tmp_path: Path) -> None:
    codes = depth_codes(0)
    root = loader.Root(tmp_path / "root")
    version = depth_version(root, depth_video(codes), FACT, len(codes))
    export(version, "lerobot", open_store(tmp_path / "out"), lossy=True)
    feature = json.loads((tmp_path / "out/meta/info.json").read_text())["features"][CAMERA]
    assert feature["shape"] == [SIDE, SIDE, 1]
    assert feature["info"] == {"is_depth_map": True, "video.pix_fmt": "gray12le", **SCALE}
    again = import_version(root, tmp_path / "out", "again")
    assert again.facts[f"{CAMERA}.mp4"]["depth"] == FACT


@pytest.mark.parametrize(
    ("pix_fmt", "fact", "why"),
    [
        ("gray10le", FACT, "gray10le"),
        ("gray12le", None, "colour of 8 bits"),
        ("gray12le", {**FACT, "max_code": 4000}, "4000"),
    ],
)
def test_export_reports_gray_that_lerobot_would_change(
    pix_fmt: str, fact: dict[str, object] | None, why: str, tmp_path: Path
) -> None:
    codes = depth_codes(0) >> (12 - int(pix_fmt[4:6]))
    data = depth_video(codes, pix_fmt=pix_fmt)
    version = depth_version(loader.Root(tmp_path / "root"), data, fact, len(codes))
    with pytest.raises(LossyExport, match=why):
        export(version, "lerobot", open_store(tmp_path / "out"))


@pytest.mark.parametrize("wrong", [{"max_code": 0}, {"min_m": 0.5}, {"max_m": "none"}, {"is_log": "yes"}])
def test_impossible_fact_is_refused_by_name(wrong: dict[str, object], tmp_path: Path) -> None:
    codes = depth_codes(2)
    fact = {
        name: str(value) if isinstance(value, float) else value for name, value in {**FACT, **wrong}.items()
    }
    if wrong == {"min_m": 0.5}:
        fact["min_m"] = "20"
    version = depth_version(loader.Root(tmp_path / "root"), depth_video(codes), fact, len(codes))
    at = {"action.npy": loader.rows(0, 1), f"{CAMERA}.mp4": loader.rows(0, 1)}
    windows = loader.windows(version.select(*at), anchor="action.npy", at=at)
    plan = loader.plan({"own": windows}, seed=1, global_batch=1)
    with (
        refusal(InvalidRuntime, what="depth", where="facts of 'observation.images.high.mp4' in own@1"),
        loader.Loader(plan, workers=0, steps=1) as batches,
    ):
        next(iter(batches))
