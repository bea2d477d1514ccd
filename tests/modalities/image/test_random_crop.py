"""loader.random_resized_crop: torchvision's boxes, drawn without its library, and the same pixels everywhere."""

import base64
import hashlib
import io
import math
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import loader
from loader.errors import DecodeFailed, InvalidRuntime
from loader.modalities import find_decoder
from loader.modalities.fields import PlacingDecoder, nowhere
from loader.modalities.image.random_crop import draw_box
from loader.native import python
from tests.refusals import refusal

decode = find_decoder("jpg")
KINDS = {"JPEG": {"quality": 95}, "PNG": {}, "WEBP": {"lossless": True}}
Y, X = np.mgrid[:96, :160].astype(float)
WAVES = 128 + 60 * np.cos(X / 9 + Y / 14) + 50 * np.cos(Y / 5 - X / 31)
PIXELS = np.stack([WAVES, 255 - WAVES, X * 1.5], axis=-1).clip(0, 255).astype(np.uint8)
PIXELS[:24, :40] = (230, 30, 30)
WIDE, USUAL = (0.08, 1.0), (3 / 4, 4 / 3)

STORED = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABQODxIPDRQSEBIXFRQYHjIhHhwcHj0sLiQySUBMS0dARkVQWnNiUFVtVkVGZIhl"
    "bXd7gYKBTmCNl4x9lnN+gXz/2wBDARUXFx4aHjshITt8U0ZTfHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8"
    "fHx8fHx8fHx8fHx8fHz/wAARCAA4AEgDASIAAhEBAxEB/8QAGgAAAgMBAQAAAAAAAAAAAAAAAAQCAwUBBv/EACIQAAICAgID"
    "AQADAAAAAAAAAAABAgMEERIhBRMxIhRRgf/EABkBAAMBAQEAAAAAAAAAAAAAAAIDBQQBBv/EACIRAAICAgIBBQEAAAAAAAAA"
    "AAECAAMEERIhIgUTFCMxYf/aAAwDAQACEQMRAD8A3llR/sk7k4/Tx1fkrOS7ZqU5rlX2xdi8dTjYpAjuRauX0jCaaMq/Jk5D"
    "GLa2uzbfim+gASWUND8jF/JLbZLxMlGa2dzEpClU3U+g0T4+PxM0JkbO5ueQtTq+mNjySu/0LsmU46FVNxlswVr7gJhP9x6n"
    "qaLo8FtgeejnSitbA4aTDGC0VjRpjdUuK0UORFWPZpx1909z0Fq9R718+ySfrO48txO2x2HfkEDgkmX4TWCU2WciEYciFj4s"
    "Zwl7GDyIq284+ItdH9nFj7KrqOKNl0KMdmfmaUWIo+w+H5JuLW++UyJrUgIWyfICqKupZGSgGo369hGhuRdGSGK0iWjtRAzs"
    "hlHhLcejUSvIlwGY3RjHRn5c+b6FcWZuYnMfJuI8hKZftl+NZ6HtldESV1ba6KfFbKuLQbrnfxP5GrvJxUdbFI3/AMmWkJ2Y"
    "tk/mxrx2LKqxORlrT43SxaMEXQjkPDu3vQG7jZVcIJPQDfkvMpUbnkoPscrf5ADnqYAA1NQ7Pcqtm09FW232AB4YBWW+AFQj"
    "FKGlBMAEWki7UlZA8ZdTRFv4W31KENpAAx5PQ9TLtvlGTSYAAGoknuf/2Q=="
)
"""56 x 72 px, 4:2:0: encoders differ from release to release."""


def encode_picture(pixels, kind="PNG", orientation=1, **options):
    note, file = Image.Exif(), io.BytesIO()
    note[0x0112] = orientation
    Image.fromarray(pixels).save(file, kind, exif=note, **{**KINDS[kind], **options})
    return file.getvalue()


def rng(seed):
    return np.random.Generator(np.random.Philox(seed))


def expected_crop(pixels, decoder, seed):
    """The crop of upright pixels, by the filter's specification."""
    draws = rng(seed)
    flip = draws.random() < decoder.flip
    box = draw_box(pixels.shape[:2], decoder.area, decoder.ratio, draws)
    out = np.zeros((*decoder.size, pixels.shape[2]), np.uint8)
    python.resample(np.ascontiguousarray(pixels), pixels.shape, 1, box, out, decoder.size, bool(flip))
    return out


def peak_bytes(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TorchvisionBoxes:
    """`RandomResizedCrop.get_params` in floats, with the numbers that penstock draws, in its order."""

    @staticmethod
    def draw(whole, area, ratio, draws):
        height, width = whole
        for _ in range(10):
            target = height * width * (area[0] + (area[1] - area[0]) * draws.random())
            low, high = math.log(ratio[0]), math.log(ratio[1])
            shape = math.exp(low + (high - low) * draws.random())
            box_width, box_height = round(math.sqrt(target * shape)), round(math.sqrt(target / shape))
            top, left = draws.random(), draws.random()
            if 0 < box_width <= width and 0 < box_height <= height:
                return (
                    int(top * (height - box_height + 1)),
                    int(left * (width - box_width + 1)),
                    box_height,
                    box_width,
                )
        box_height, box_width = height, width
        if width / height < ratio[0]:
            box_height = round(width / ratio[0])
        elif width / height > ratio[1]:
            box_width = round(height * ratio[1])
        return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


@pytest.mark.parametrize(
    ("area", "ratio"),
    [(WIDE, USUAL), ((0.3, 0.9), (0.2, 5.0)), ((1.0, 1.0), USUAL), ((0.5, 1.0), (3.0, 3.0))],
)
def test_random_boxes_are_torchvisions(area, ratio):
    """From the same numbers, boxes differ by a rounding at most, and that in less than one of 200."""
    ours, theirs, n_other = rng(1), rng(1), 0
    for n in range(2000):
        whole = 80 + n % 700, 1200 - n % 900
        box = draw_box(whole, area, ratio, ours)
        reference = TorchvisionBoxes.draw(whole, area, ratio, theirs)
        n_other += box != reference
        assert max(abs(a - b) for a, b in zip(box, reference, strict=True)) <= 1
    assert n_other < 10


def test_random_boxes_lie_in_the_picture():
    draws = rng(2)
    for n in range(3000):
        height, width = 1 + n % 37, 1 + n % 53 * (n % 2 * 40 + 1)
        ratio = ((3 / 4, 4 / 3), (1 / 1000, 1000.0), (0.001, 0.001), (1000.0, 1000.0))[n % 4]
        top, left, box_height, box_width = draw_box((height, width), (1e-9, 1.0), ratio, draws)
        assert min(top, left) >= 0
        assert min(box_height, box_width) >= 1
        assert top + box_height <= height
        assert left + box_width <= width


def test_random_boxes_have_even_areas_ratios_and_places():
    """On a picture where every box fits: eight classes of 4,000 boxes each, in exact numbers."""
    draws, low, high = rng(3), math.log(3 / 4), math.log(4 / 3)
    classes = np.zeros((4, 8), int)
    for _ in range(4000):
        top, left, height, width = draw_box((3000, 3000), (0.1, 0.5), USUAL, draws)
        shares = (
            (height * width / 9e6 - 0.1) / 0.4,
            (math.log(width / height) - low) / (high - low),
            top / (3000 - height),
            left / (3000 - width),
        )
        classes[range(4), [min(7, max(0, int(8 * share))) for share in shares]] += 1
    assert classes.tolist() == [
        [520, 512, 506, 471, 507, 518, 482, 484],
        [473, 471, 495, 517, 491, 479, 512, 562],
        [454, 523, 512, 482, 482, 520, 529, 498],
        [501, 497, 517, 507, 484, 495, 508, 491],
    ]
    chi_square = ((classes - 500) ** 2 / 500).sum(axis=1)
    assert (chi_square < 18.5).all()  # 1 of 100, for 7 degrees of freedom


def test_random_boxes_are_on_record():
    draws = rng(4)
    assert [draw_box((375, 500), WIDE, USUAL, draws) for _ in range(4)] == [
        (94, 86, 273, 311),
        (28, 137, 307, 362),
        (41, 195, 218, 247),
        (20, 72, 342, 392),
    ]


def test_boxes_that_never_fit_are_the_largest_in_the_middle():
    for whole, ratio, box in (
        ((100, 400), (1.0, 2.0), (0, 100, 100, 200)),
        ((400, 100), (0.5, 1.0), (100, 0, 200, 100)),
        ((100, 150), (1.0, 2.0), (0, 0, 100, 150)),
        ((1, 400), (3 / 4, 4 / 3), (0, 199, 1, 1)),
    ):
        assert draw_box(whole, WIDE, ratio, None) == box
    assert draw_box((1, 4000), (1.0, 1.0), (1.0, 2.0), rng(1)) == (0, 1999, 1, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_crops_are_of_the_upright_image(kind, orientation):
    """A JPEG that lies on its side is filtered as it is stored, columns first: at most a level off."""
    data = encode_picture(PIXELS, kind, orientation)
    for seed in range(4):
        decoder = loader.random_resized_crop((40, 56), flip=0.5)
        result = decoder(data, rng(seed))
        assert (result.shape, result.dtype) == ((40, 56, 3), np.uint8)
        assert result.flags.c_contiguous
        assert result.flags.writeable
        error = np.abs(result.astype(int) - expected_crop(decode(data, None), decoder, seed))
        assert error.max() <= (kind == "JPEG" and orientation > 1)


def test_crop_of_a_stored_jpeg_has_the_bits_on_record():
    """Whole, and shrunk by 2, 4 and 8 in the decoder, as the box and the size have it."""
    cases = {
        size: loader.random_resized_crop(size, (0.6, 1.0), flip=0.5)
        for size in ((40, 40), (12, 13), (6, 7), (2, 3))
    }
    digests = {
        size: hashlib.sha256(b"".join(decoder(STORED, rng(seed)).tobytes() for seed in range(4))).hexdigest()[
            :12
        ]
        for size, decoder in cases.items()
    }
    assert digests == {
        (40, 40): "6e4a1bf70ce9",
        (12, 13): "86ca18d1f16f",
        (6, 7): "2f9ae7836131",
        (2, 3): "6514379112d0",
    }


@pytest.mark.parametrize(("size", "shrunk"), [((200, 150), 1), ((100, 110), 2), ((40, 50), 4), ((20, 30), 8)])
def test_crop_of_a_large_jpeg_is_shrunk_by_its_decoder(size, shrunk, monkeypatch):
    from loader.modalities.image import decode as image

    y, x = np.mgrid[:800, :803].astype(float)
    waves = 128 + 50 * np.cos(x / 37 + y / 21) + 40 * np.cos(y / 13 - x / 60)
    data = encode_picture(
        np.stack([waves, 255 - waves, x / 4], axis=-1).clip(0, 255).astype(np.uint8), "JPEG"
    )
    asked, real = [], image._plain_jpeg
    monkeypatch.setattr(image, "_plain_jpeg", lambda d, h, n, out=None: asked.append(n) or real(d, h, n, out))
    decoder = loader.random_resized_crop(size, (0.9, 1.0))
    error = np.abs(decoder(data, rng(5)).astype(int) - expected_crop(decode(data, None), decoder, 5))
    assert asked[0] == shrunk
    assert error.mean() <= 0.6


def test_crop_draws_the_same_from_the_same_generator():
    data = encode_picture(PIXELS)
    decoder = loader.random_resized_crop((24, 24), flip=0.5)
    assert np.array_equal(decoder(data, rng(7)), decoder(data, rng(7)))
    assert not np.array_equal(decoder(data, rng(7)), decoder(data, rng(8)))
    middle = np.zeros((24, 24, 3), np.uint8)
    python.resample(PIXELS, PIXELS.shape, 1, (0, 16, 96, 128), middle, (24, 24), False)
    assert np.array_equal(loader.random_resized_crop((24, 24), flip=1.0)(data), middle)  # without any


def test_flip_mirrors_by_its_chance_and_leaves_the_box():
    data = encode_picture(PIXELS)
    never, always, often = (loader.random_resized_crop((24, 24), flip=chance) for chance in (0, 1, 0.25))
    n_flips = 0
    for seed in range(160):
        plain, mirrored, result = (decoder(data, rng(seed)) for decoder in (never, always, often))
        assert np.array_equal(plain[:, ::-1], mirrored)
        n_flips += not np.array_equal(result, plain)
        assert np.array_equal(result, plain) or np.array_equal(result, mirrored)
    assert n_flips == 51  # of 160, with a chance of 1 in 4


def test_crop_goes_where_it_is_told():
    rows = np.zeros((3, 24, 30, 3), np.uint8)
    offered = []

    def place(shape, dtype):
        offered.append((shape, dtype))
        return rows[1]

    for kind in KINDS:
        for orientation in (1, 2, 3, 6):
            data = encode_picture(PIXELS, kind, orientation)
            decoder = loader.random_resized_crop((24, 30), flip=0.5)
            rows[:] = 0
            assert decoder(data, rng(1), place) is rows[1] or np.shares_memory(
                decoder(data, rng(1), place), rows[1]
            )
            assert np.array_equal(rows[1], decoder(data, rng(1)))
            assert not rows[[0, 2]].any()
    assert set(offered) == {((24, 30, 3), np.dtype(np.uint8))}


def test_transparent_crops_lie_on_a_ground_or_keep_their_alpha():
    clear = np.zeros(PIXELS.shape[:2], np.uint8)
    clear[:, 80:] = 255
    data = encode_picture(np.dstack([PIXELS, clear]))
    options = {"area": (1.0, 1.0), "ratio": (5 / 3, 5 / 3)}
    for ground, level in (("white", 255), ("black", 0)):
        result = loader.random_resized_crop((96, 160), alpha=ground, **options)(data)
        assert (result[:, :80] == level).all()
        assert np.array_equal(result[:, 80:], PIXELS[:, 80:])
    kept = loader.random_resized_crop((48, 80), alpha="keep", **options)
    assert (kept(data)[:, :39, 3] == 0).all()
    assert (kept(data)[:, 41:, 3] == 255).all()
    opaque = kept(encode_picture(PIXELS, "JPEG"))
    assert (opaque[..., 3] == 255).all()
    rim = np.abs(kept(data)[:, 40:42, :3].astype(int) - opaque[:, 40:42, :3])
    assert rim.mean() < 12  # no dark rim: what is not seen bleeds into nothing


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_jpegs_of_other_colours_are_cropped_as_they_are_decoded(mode):
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, "JPEG")
    decoder = loader.random_resized_crop((40, 56))
    assert np.array_equal(
        decoder(file.getvalue(), rng(1)), expected_crop(decode(file.getvalue(), None), decoder, 1)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(4, 4), (64, 64)])
def test_truncated_images_are_refused(kind, size):
    """Wherever they end, and whatever box is drawn: also above the damage, and shrunk by 8."""
    data = encode_picture(PIXELS, kind)
    decoder = loader.random_resized_crop(size, (0.05, 0.1))
    for n in (0, 1, 3, 40, len(data) // 2, len(data) - 120):
        for seed in range(3):
            with pytest.raises(DecodeFailed):
                decoder(data[:n], rng(seed))


def test_damage_is_refused_where_loader_image_refuses_it():
    """One byte of the coefficients after another: for any box, whole or shrunk."""
    data, n_refused = encode_picture(PIXELS, "JPEG", quality=80), 0
    start = data.index(b"\xff\xda") + 14
    for at in range(start, len(data) - 2, (len(data) - start) // 60):
        broken = data[:at] + b"\xff" + data[at + 1 :]
        refusals = []
        for decoder in (
            loader.image(),
            loader.random_resized_crop((64, 64), (0.08, 0.1)),
            loader.random_resized_crop((4, 4)),
        ):
            try:
                decoder(broken, rng(at))
                refusals.append(False)
            except DecodeFailed:
                refusals.append(True)
        assert len(set(refusals)) == 1, at
        n_refused += refusals[0]
    assert n_refused > 30


def test_memory_of_a_crop_is_that_of_the_shrunk_image():
    """64 million values decode to a million where the result is small, and are filtered through a few rows."""
    file = io.BytesIO()
    Image.new("RGB", (5120, 4096), (10, 200, 30)).save(file, "JPEG")
    decoder = loader.random_resized_crop((64, 64), (0.9, 1.0))
    decoder(file.getvalue(), rng(1))
    assert peak_bytes(lambda: decoder(file.getvalue(), rng(1))) < 5120 * 4096 * 3 / 64 + 2**18


def test_images_of_sides_beyond_the_filter_are_refused():
    data = encode_picture(np.zeros((1, 2**20 + 1, 3), np.uint8))
    with refusal(DecodeFailed, what="px in a row", given=1048577, accepted=1048576):
        loader.random_resized_crop((4, 4))(data, rng(1))


ALL = "random_resized_crop()"
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)


@pytest.mark.parametrize(
    ("wrong", "what", "value"),
    [
        ({"size": (0, 5)}, "size", (0, 5)),
        ({"size": 5}, ALL, [5, AREA, RATIO, 0.0]),
        ({"size": None}, ALL, [None, AREA, RATIO, 0.0]),
        ({"size": "w8h8f2"}, ALL, ["w8h8f2", AREA, RATIO, 0.0]),
        ({"size": (2**20 + 1, 1)}, "size", (2**20 + 1, 1)),
        ({"size": (20000, 20000)}, "size", (20000, 20000)),
        ({"area": (0, 1)}, "area", (0.0, 1.0)),
        ({"area": (0.5, 0.4)}, "area", (0.5, 0.4)),
        ({"area": (0.5, 1.1)}, "area", (0.5, 1.1)),
        ({"area": (math.nan, 1)}, "area", (math.nan, 1.0)),
        ({"area": 0.5}, ALL, [(5, 5), 0.5, RATIO, 0.0]),
        ({"ratio": (2, 1)}, "ratio", (2.0, 1.0)),
        ({"ratio": (0, 1)}, "ratio", (0.0, 1.0)),
        ({"ratio": (1, math.inf)}, "ratio", (1.0, math.inf)),
        ({"ratio": ("3", "4")}, ALL, [(5, 5), AREA, ("3", "4"), 0.0]),
        ({"flip": 2}, "flip", 2.0),
        ({"flip": True}, ALL, [(5, 5), AREA, RATIO, True]),
        ({"alpha": "red"}, "alpha", "red"),
    ],
)
def test_arguments_that_are_refused(wrong, what, value):
    with refusal(InvalidRuntime, what=what, given=value):
        loader.random_resized_crop(**{"size": (5, 5), **wrong})


def test_requests_are_values():
    request = loader.random_resized_crop(
        "w48h96", [0.25, 1], np.array([0.5, 2], np.float32).tolist(), flip=np.float32(0.5)
    )
    assert request.size == (96, 48)
    assert request == loader.random_resized_crop((96, 48), (0.25, 1.0), (0.5, 2.0), flip=0.5)
    assert request != loader.random_resized_crop((96, 48), (0.25, 1.0), (0.5, 2.0))
    assert pickle.loads(pickle.dumps(request)) == request  # noqa: S301
    assert len({request, pickle.loads(pickle.dumps(request))}) == 1  # noqa: S301
    assert repr(request) == (
        "RandomResizedCrop(size=(96, 48), area=(0.25, 1.0), ratio=(0.5, 2.0), flip=0.5, alpha='white', bits=None)"
    )


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    """Twelve images of other shapes and formats; some on their side."""
    with loader.Root(str(tmp_path_factory.mktemp("crops"))) as root:
        with root.write("photos") as writer:
            for n in range(12):
                pixels = np.ascontiguousarray(np.roll(PIXELS, 7 * n, axis=1)[: 40 + 4 * n])
                data = encode_picture(pixels, list(KINDS)[n % 3], (1, 6, 3, 1)[n % 4])
                writer.add(f"k{n}", {"img": data, "cls": n})
        yield root.open("photos@1")


def first_batches(version, **options):
    """Two epochs, of two batches each."""
    plan = loader.plan({"photos": version}, seed=1, global_batch=6)
    decode = {"img": loader.random_resized_crop((24, 32), flip=0.5)}
    with loader.Loader(plan, decode=decode, framework="numpy", **options) as batches:
        return plan, decode, [next(batches) for _ in range(4)]


def test_crops_in_a_loader_are_the_same_for_threads_and_in_a_replay(version):
    plan, decode, batches = first_batches(version, workers=0)
    *_, threaded = first_batches(version, workers=2)
    with loader.Replay(plan, (), decode=decode) as replay:
        for step, (batch, other) in enumerate(zip(batches, threaded, strict=True)):
            assert batch["img"].shape == (6, 24, 32, 3)
            assert np.array_equal(other["img"], batch["img"])
            assert np.array_equal(replay.batch(step)["img"], batch["img"])
    epochs = [
        {n: crop for batch in epoch for n, crop in zip(batch["cls"].tolist(), batch["img"], strict=True)}
        for epoch in (batches[:2], batches[2:])
    ]
    assert all(not np.array_equal(epochs[0][n], epochs[1][n]) for n in range(12))  # another box each time


def test_crops_of_worker_processes_are_the_callers(version):
    *_, batches = first_batches(version, workers=0)
    *_, others = first_batches(version, workers=1, executor="processes")
    for batch, other in zip(batches, others, strict=True):
        assert np.array_equal(batch["img"], other["img"])


class Brightness(PlacingDecoder):
    """A decoder of the user's that fills the row it is offered."""

    def __call__(self, data, rng=None, place=nowhere):
        out = place((2,), np.dtype(np.float64))
        out = np.empty(2) if out is None else out
        out[:] = data[0], rng.random()
        return out


def test_decoders_of_users_may_take_memory_and_draw(version):
    plan = loader.plan({"photos": version}, seed=1, global_batch=12)
    with loader.Loader(plan, decode={"img": Brightness()}, framework="numpy", workers=0) as batches:
        batch = next(batches)
    assert set(batch["img"][:, 0]) == {0x89, 0xFF, ord("R")}
    assert len(set(batch["img"][:, 1])) == 12


def test_crops_are_decoded_into_the_rows_of_the_batch(version, monkeypatch):
    from loader.run.batch import columns

    moved = []
    real = columns.FieldRows.put

    def put(self, row, value):
        moved.append((type(value), value is self._lent))
        real(self, row, value)

    monkeypatch.setattr(columns.FieldRows, "put", put)
    plan = loader.plan({"photos": version}, seed=1, global_batch=12)
    decode = {"img": loader.random_resized_crop((24, 32), flip=0.5)}
    with loader.Loader(plan, decode=decode, framework="numpy", workers=0) as batches:
        next(batches)
    assert moved.count((np.ndarray, True)) == 12
    assert (np.ndarray, False) not in moved


def test_crops_of_real_photos():
    """Where PENSTOCK_MEDIA names the corpus: what `decode` refuses is refused, anything else is cropped."""
    folder, n_cropped = os.environ.get("PENSTOCK_MEDIA"), 0
    files = sorted(Path(folder, "image").glob("*")) if folder else []
    for data in (STORED, *(path.read_bytes() for path in files)):
        decoder = loader.random_resized_crop((224, 224), flip=0.5)
        try:
            pixels = loader.image()(data)
        except DecodeFailed:
            with pytest.raises(DecodeFailed):
                decoder(data, rng(1))
            continue
        assert np.abs(decoder(data, rng(1)).astype(int) - expected_crop(pixels, decoder, 1)).mean() < 1
        n_cropped += 1
    assert n_cropped >= 1
