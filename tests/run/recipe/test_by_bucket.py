"""Decoders and transforms that differ by bucket: a batch is one array of its bucket's shape, whatever was stored."""

import io

import av
import numpy as np
import pytest
from PIL import Image

import loader
from loader.errors import InvalidRuntime
from tests.refusals import refusal

WIDE, HIGH = "w48h32", "w32h48"
SHAPES = {WIDE: (32, 48, 3), HIGH: (48, 32, 3)}


def picture(number):
    """Stored sizes differ; even numbers are wide."""
    rng = np.random.default_rng(number)
    long, short = 96 + 8 * (number % 5), 64 + 4 * (number % 3)
    shape = (short, long, 3) if number % 2 == 0 else (long, short, 3)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, shape, np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def film(number):
    """30 frames; of every second one 24 are asked for, of others 4."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream(
            "libx264", rate=25, options={"preset": "ultrafast", "g": "12", "bf": "0"}
        )
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = 64, 48, "yuv420p", 1
        for n in range(30):
            pixels = np.full((48, 64, 3), (8 * n + number) % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return out.getvalue()


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    with loader.Root(str(tmp_path_factory.mktemp("by-bucket"))) as root:
        with root.write("photos") as writer:
            for number in range(40):
                label = HIGH if number % 2 else WIDE
                writer.add(
                    f"{number:03d}", {"jpg": picture(number), "cls": number}, metadata={"bucket": label}
                )
        yield writer.version


@pytest.fixture(scope="module")
def plan(version):
    return loader.plan(
        {"photos": version}, seed=3, global_batch=6, bucket_by=loader.bucket("bucket", batch={HIGH: 4})
    )


def of_its_label(label):
    return loader.image(size=label, crop="random")


OPTIONS = [
    {"workers": 0},
    {"workers": 2},
    {"workers": 1, "executor": "processes"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["caller", "threads", "processes"])
def test_every_picture_has_its_buckets_shape(plan, options):
    decode = {"jpg": loader.by_bucket({label: loader.image(size=label, crop="center") for label in SHAPES})}
    seen = set()
    with loader.Loader(plan, 0, 1, framework="numpy", decode=decode, **options) as batches:
        for _, batch in zip(range(12), batches, strict=False):
            assert batch["jpg"].shape == (len(batch), *SHAPES[batch.bucket])
            alone = loader.image(size=batch.bucket, crop="center")
            for pixels, number in zip(batch["jpg"], batch["cls"].tolist(), strict=True):
                assert np.array_equal(pixels, alone(picture(number), None))
            seen.add(batch.bucket)
    assert seen == set(SHAPES)


def test_random_places_do_not_depend_on_ranks_and_workers(plan):
    decode = {"jpg": loader.by_bucket(of_its_label)}
    options = {"framework": "numpy", "decode": decode}
    with (
        loader.Loader(plan, 0, 1, workers=0, **options) as alone,
        loader.Loader(plan, 0, 2, workers=2, **options) as one,
        loader.Loader(plan, 1, 2, workers=1, executor="processes", **options) as other,
    ):
        for _ in range(8):
            whole, *parts = (next(each) for each in (alone, one, other))
            assert np.array_equal(np.concatenate([part["jpg"] for part in parts]), whole["jpg"])


@pytest.mark.parametrize("options", OPTIONS[:2], ids=["caller", "threads"])
def test_transform_of_its_own_for_each_bucket(plan, options):
    def label_transform(label):
        return lambda sample, rng: {"cls": sample["cls"], "label": label}

    with loader.Loader(plan, 0, 1, transform=loader.by_bucket(label_transform), **options) as batches:
        for _, batch in zip(range(10), batches, strict=False):
            assert set(batch["label"]) == {batch.bucket}


def test_substitute_has_its_buckets_shape(memory_root):
    """A picture that does not decode gives way to another of its bucket."""
    with memory_root.write("photos") as writer:
        for number in range(40):
            data = b"\xff\xd8 no picture" if number == 8 else picture(number)
            writer.add(f"{number:03d}", {"jpg": data}, metadata={"bucket": HIGH if number % 2 else WIDE})
    plan = loader.plan({"photos": writer.version}, seed=3, global_batch=5, bucket_by="bucket")
    decode = {"jpg": loader.by_bucket(of_its_label)}
    substituted = []
    with loader.Loader(
        plan, 0, 1, workers=0, framework="numpy", decode=decode, corrupt_budget=0.5
    ) as batches:
        for _, batch in zip(range(20), batches, strict=False):
            assert batch["jpg"].shape == (5, *SHAPES[batch.bucket])
            substituted += batch.substitutions
    assert {one.address.key for one in substituted} == {"008"}
    assert all(int(one.substitute) % 2 == 0 for one in substituted)


def test_clips_have_their_buckets_number_of_frames(memory_root):
    """Read by their packets, and chosen together by the decoder of their bucket."""
    from loader.modalities.video.packet_table import index_packets

    with memory_root.write("films", groups={"mp4.packets": "media_index"}) as writer:
        for number in range(12):
            data = film(number)
            writer.add(
                f"{number:02d}",
                {"mp4": data, "mp4.packets": index_packets(data)},
                metadata={"length": "long" if number % 2 else "short"},
            )
    plan = loader.plan({"films": writer.version.select("mp4")}, seed=3, global_batch=3, bucket_by="length")
    shapes = {"long": "w32h24f24", "short": "w48h32f4"}
    decode = {"mp4": loader.by_bucket(lambda label: loader.video(size=shapes[label]))}
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy", decode=decode) as batches:
        for _, batch in zip(range(6), batches, strict=False):
            assert batch["mp4"].shape == (3, *{"long": (24, 24, 32), "short": (4, 32, 48)}[batch.bucket], 3)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            {"decode": {"jpg": {WIDE: loader.image()}}},
            {"what": "decode", "accepted": "True, False, or a dict of field -> decoder"},
        ),
        (
            {"decode": {"jpg": (WIDE, loader.image)}},
            {"what": "decode", "accepted": "True, False, or a dict of field -> decoder"},
        ),
        ({"decode": {"jpg": "only wide"}}, {"what": "decode['jpg']", "given": "w32h48"}),
        (
            {"decode": {"jpg": "no decoder"}},
            {"what": "decode['jpg']", "where": "bucket 'w32h48'", "given": 7},
        ),
        ({"transform": "only wide"}, {"what": "transform", "given": "w32h48"}),
    ],
)
def test_what_is_refused(plan, given, fault: dict[str, object]):
    kinds = {
        "only wide": loader.by_bucket({WIDE: loader.image(size=WIDE)}),
        "no decoder": loader.by_bucket(lambda label: 7),
    }
    options = {
        name: kinds[one] if isinstance(one, str) else {"jpg": kinds.get(str(one["jpg"]), one["jpg"])}
        for name, one in given.items()
    }
    with refusal(InvalidRuntime, **fault):
        loader.Loader(plan, 0, 1, **options)


def test_plan_without_buckets_has_no_choice_of_bucket(version):
    plan = loader.plan({"photos": version}, seed=3, global_batch=6)
    with refusal(InvalidRuntime, what="decode['jpg']", given="by_bucket"):
        loader.Loader(plan, 0, 1, decode={"jpg": loader.by_bucket(of_its_label)})


@pytest.mark.parametrize("given", [{}, {"a": 7}, 7, None])
def test_by_bucket_takes_what_can_be_called(given):
    with refusal(InvalidRuntime, what="by_bucket", given=given):
        loader.by_bucket(given)


def test_what_a_bucket_cannot_be_made_into_says_so(plan):
    with refusal(InvalidRuntime, what="image()", given=["w32h48x", None, "white", None]) as raised:
        loader.Loader(
            plan, 0, 1, decode={"jpg": loader.by_bucket(lambda label: loader.image(size=label + "x"))}
        )
    assert "while making decode['jpg'] of bucket 'w32h48'" in raised.value.__notes__
