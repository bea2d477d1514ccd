"""Media that the tests make themselves: small, and known to the pixel."""

import io
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import dagster as dg
import numpy as np
import pytest
from PIL import Image

import loader
from assets.arrivals.make_batches import discover
from assets.gate_settings import Gate
from assets.release.gate_run import audit_batch
from assets.spec import DatasetSpec
from dagster_project.definitions import batch_partitions, build_defs
from loader.storage import open_store
from penstock.stages import StageRecord
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource
from tests.wav_files import pcm_wav

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
Run = Callable[..., dg.ExecuteInProcessResult]
MakeVideo = Callable[..., bytes]


def picture(width: int, height: int) -> Image.Image:
    """Left half red, right half blue, with a green top left corner: every turn of it is different."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2] = (200, 30, 30)
    pixels[:, width // 2 :] = (30, 30, 200)
    pixels[: height // 4, : width // 4] = (30, 200, 30)
    return Image.fromarray(pixels)


def jpeg(width: int = 80, height: int = 60, **options: object) -> bytes:
    sink = io.BytesIO()
    picture(width, height).save(sink, "JPEG", quality=95, **options)
    return sink.getvalue()


def video(
    path: Path,
    pts: list[int],
    *,
    size: tuple[int, int] = (96, 64),
    time_base: Fraction = Fraction(1, 1000),
    sound: bool = False,
) -> bytes:
    """H.264 in mp4, index in front, one grey level per frame: frame i has luma about 20 + 2 i."""
    with av.open(
        str(path), "w", format="mp4", options={"movflags": "faststart", "video_track_timescale": "1000"}
    ) as out:
        stream = out.add_stream("libx264", rate=25, options={"g": "250", "crf": "10"})
        stream.width, stream.height, stream.pix_fmt, stream.time_base = *size, "yuv420p", time_base
        stream.codec_context.time_base = time_base
        voice = out.add_stream("aac", rate=16000, layout="mono") if sound else None
        for number, ticks in enumerate(pts):
            grey = np.full((size[1], size[0], 3), 20 + 2 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
            frame.pts, frame.time_base = ticks, time_base
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
        if voice is not None:
            tone = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            tone.sample_rate = 16000
            out.mux(voice.encode(tone))
            out.mux(voice.encode(None))
    return path.read_bytes()


def wav(seconds: float, rate_hz: int = 16000, channels: int = 1) -> bytes:
    """16-bit PCM: 440 Hz."""
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    tone = (8000 * np.sin(2 * np.pi * 440 * times)).astype("<i2")
    return pcm_wav(np.repeat(tone[:, None], channels, axis=1), rate_hz)


@pytest.fixture(autouse=True)
def plots_are_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no plot: matplotlib takes a second per batch. pages/conftest.py draws them."""
    sink = io.BytesIO()
    Image.new("P", (1, 1)).save(sink, "PNG")
    monkeypatch.setattr("assets.pages.plots._png", lambda figure: sink.getvalue())


@pytest.fixture
def make_jpeg() -> Callable[..., bytes]:
    return jpeg


@pytest.fixture
def make_wav() -> Callable[..., bytes]:
    return wav


@pytest.fixture
def make_video(tmp_path: Path) -> MakeVideo:
    def make(pts: list[int], **options: object) -> bytes:
        return video(tmp_path / "made.mp4", pts, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def half_red_blue() -> Callable[[int, int], Image.Image]:
    return picture


@pytest.fixture
def landing(tmp_path: Path, make_jpeg: Callable[..., bytes], make_video: MakeVideo) -> Path:
    """A landing place: two photos, a video, a sound, one file to drop; names with spaces and in Chinese."""
    place = tmp_path / "landing"
    files = {
        "photos/cats/a cat.jpg": make_jpeg(80, 60),
        "photos/dogs/狗.jpg": make_jpeg(64, 64),
        "videos/clip.mp4": make_video(list(range(0, 4000, 40)), sound=True),
        "speech/tone.wav": wav(3.0),
        "readme.txt": b"not media\n",
    }
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


@pytest.fixture
def root(tmp_path: Path) -> Iterator[loader.Root]:
    with loader.Root(tmp_path / "root") as made:
        made.create()
        yield made


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """Dagster's own databases, in memory: what a test may do is in its own root."""
    quiet = {"telemetry": {"enabled": False}}
    with dg.DagsterInstance.ephemeral(str(tmp_path_factory.mktemp("dagster")), settings=quiet) as made:
        yield made


@pytest.fixture
def arrive(root: loader.Root) -> Callable[[Path], str]:
    """The batch of what has arrived in a place."""

    def go(place: Path) -> str:
        (batch,) = discover(root.store, open_store(str(place)), "demo")
        return batch

    return go


@pytest.fixture
def run(tmp_path: Path, landing: Path, instance: dg.DagsterInstance) -> Run:
    """Run a job of a dataset, or some of its assets alone, on an instance of its own.

    run("ingest", spec, batch) or run("release", spec); run(["units", "samples"], spec, batch): only these.
    """

    def go(
        what: str | list[str], spec: DatasetSpec, batch: str | None = None, place: Path | None = None
    ) -> dg.ExecuteInProcessResult:
        instance.add_dynamic_partitions(str(batch_partitions(spec).name), [batch] if batch else [])
        defs = build_defs(
            {
                "root": RootResource(url=str(tmp_path / "root")),
                "landing": LandingResource(url=str(place or landing)),
                "compute": ComputeResource(engine="inline"),
            },
            [spec],
        )
        job = f"{spec.name}_{what}" if isinstance(what, str) else "__ASSET_JOB"
        only = [] if isinstance(what, str) else [dg.AssetKey([spec.name, stage]) for stage in what]
        return defs.resolve_job_def(job).execute_in_process(
            instance=instance,
            partition_key=batch,
            asset_selection=only or None,
            run_config=QUIET,
            raise_on_error=False,
        )

    return go


@pytest.fixture
def failure_text() -> Callable[[dg.ExecuteInProcessResult], str]:
    """Why a run failed: what its `dg.Failure` says, with "error: " in front where it raised something else."""

    def read_failure(result: dg.ExecuteInProcessResult) -> str:
        (failed,) = [event for event in result.all_events if event.is_step_failure]
        data = failed.step_failure_data.user_failure_data
        return (data.description if data else None) or f"error: {failed.step_failure_data.error}"

    return read_failure


@pytest.fixture
def check_results() -> Callable[[dg.ExecuteInProcessResult], dict[str, bool]]:
    """check -> passed."""
    return lambda result: {found.check_name: found.passed for found in result.get_asset_check_evaluations()}


@pytest.fixture
def numbers(root: loader.Root) -> Callable[[], list[int]]:
    """The numbers of the versions that there are."""
    return lambda: [record.number for record in root.state.versions("demo")]


@pytest.fixture(scope="session")
def publish_alone() -> Callable[[loader.Root, StageRecord], loader.Version]:
    """publish_alone(root, samples record): its parts as the next version, as somebody else's release with a gate that
    asks for nothing makes it, from a root of its own."""

    def publish(root: loader.Root, record: StageRecord) -> loader.Version:
        verdict = audit_batch(root, record, Gate(suite=(), thresholds=None), "another").record
        parts = [loader.Part.from_json(part) for part in record.body["parts"]]
        how = {"exclude": record.body["exclude"], "foreign": record.body.get("foreign")}
        return loader.Root(root.url).publish(record.dataset, parts, verdict=verdict.path, **how)

    return publish
