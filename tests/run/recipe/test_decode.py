"""From stored bytes to values: every modality through a Loader, decoders of the caller's, transforms."""

import functools

import numpy as np
import pytest

import loader
from loader.errors import DecodeFailed, InvalidRuntime, TransformFailed
from loader.order.random.generators import field_generator
from tests.refusals import refusal

N = 6


@pytest.fixture(scope="module")
def version(media):
    """Six samples with a field of every kind; sample i has value i in each."""
    with loader.Root("memory://run-decode") as root:
        with root.write("media") as writer:
            for i in range(N):
                writer.add(
                    f"clip/{i}",
                    {
                        "jpg": media.picture(i, "JPEG"),
                        "mask.png": media.picture(i, "PNG", (5, 4 + i)),
                        "webp": media.picture(i, "WEBP"),
                        "wav": media.sound(i, "pcm_s16le", "wav"),
                        "flac": media.sound(i, "flac", "flac"),
                        "mp4": media.video(i),
                        "latent.npy": np.full((2, 3), i, np.float16),
                        "txt": f"ünï {i}",
                        "json": {"i": i},
                        "cls": i,
                        "blob": bytes([i]),
                    },
                )
        yield root.open("media@latest")


def one_batch(version, fields, **options):
    plan = loader.plan({"m": version.select(*fields)}, seed=1, global_batch=N)
    with loader.Loader(plan, 0, 1, **{"workers": 0, "framework": "numpy", **options}) as batches:
        batch = next(batches)
    return batch, [int(key.rpartition("/")[2]) for _, key in batch.ids]


@pytest.mark.parametrize("field", ["jpg", "webp"])
def test_pictures_of_one_size_are_stacked(version, field):
    batch, numbers = one_batch(version, [field])
    assert (batch[field].shape, batch[field].dtype) == ((N, 12, 16, 3), np.uint8)
    for pixels, i in zip(batch[field], numbers, strict=True):
        assert abs(pixels.astype(int) - 10 * i).max() <= 2


def test_pictures_of_many_sizes_are_listed(version):
    batch, numbers = one_batch(version, ["mask.png"])
    assert [pixels.shape for pixels in batch["mask.png"]] == [(5, 4 + i, 3) for i in numbers]
    assert all((pixels == 10 * i).all() for pixels, i in zip(batch["mask.png"], numbers, strict=True))


@pytest.mark.parametrize("field", ["wav", "flac"])
def test_sounds(version, field):
    batch, numbers = one_batch(version, [field])
    assert (batch[field].shape, batch[field].dtype) == ((N, 1, 400), np.float32)
    assert batch[field][:, 0, 0].tolist() == [i / 128 for i in numbers]


def test_values(version):
    batch, numbers = one_batch(version, ["latent.npy", "txt", "json", "cls", "blob"])
    assert batch["latent.npy"].dtype == np.float16
    assert batch["latent.npy"][:, 1, 2].tolist() == numbers
    assert batch["txt"] == [f"ünï {i}" for i in numbers]
    assert batch["json"] == [{"i": i} for i in numbers]
    assert (batch["cls"].dtype, batch["cls"].tolist()) == (np.int64, numbers)
    assert batch["blob"] == [bytes([i]) for i in numbers]


def test_clip_begins_at_a_place_that_is_the_samples(version, media):
    """16 of 40 frames, the same place at every world size and thread count, another one in another epoch."""
    plan = loader.plan({"m": version.select("mp4")}, seed=1, global_batch=N)
    places = {}
    for world_size, workers in ((1, 0), (2, 2), (3, 1)):
        for rank in range(world_size):
            with loader.Loader(plan, rank, world_size, workers=workers, steps=3) as batches:
                for batch in batches:
                    for one, clip in zip(batch.ids, batch["mp4"], strict=True):
                        assert clip.shape == (16, 48, 64, 3)
                        assert one[1] == f"clip/{media.clip_sample(clip)}"
                        first = media.first_frame(clip)
                        assert places.setdefault((batch.step, one[1]), first) == first
    assert len(places) == 3 * N
    by_epoch = [[places[epoch, f"clip/{i}"] for i in range(N)] for epoch in range(3)]
    assert by_epoch[0] != by_epoch[1] != by_epoch[2] != by_epoch[0]
    assert all(0 <= place <= 24 for place in places.values())
    assert len(set(places.values())) > 6


def test_bytes_alone(version):
    batch, numbers = one_batch(version, ["jpg", "cls", "mp4"], decode=False)
    assert batch["cls"] == [str(i).encode() for i in numbers]
    assert all(data.startswith(b"\xff\xd8") for data in batch["jpg"])
    assert all(b"ftyp" in data[:12] for data in batch["mp4"])


def test_decoder_of_the_callers_for_one_field(version, media):
    clip = loader.video(frames=4, stride=3, size=(24, 32), start=5)
    batch, numbers = one_batch(
        version, ["mp4", "jpg", "cls"], decode={"mp4": clip, "jpg": lambda data, rng: len(data)}
    )
    assert batch["mp4"].shape == (N, 4, 24, 32, 3)
    assert abs(batch["mp4"][:, 0, 4:20, 4:12].astype(int) - 30).max() <= 3
    assert batch["jpg"].tolist() == [len(media.picture(i, "JPEG")) for i in numbers]
    assert batch["cls"].tolist() == numbers


def test_decoder_of_the_callers_gets_the_samples_generator(version):
    def decoder(data, rng):
        return int(rng.integers(2**60))

    plain, _ = one_batch(version, ["blob"], decode={"blob": decoder})
    threads, _ = one_batch(version, ["blob"], decode={"blob": decoder}, workers=3)
    partial, _ = one_batch(version, ["blob"], decode={"blob": functools.partial(decoder)})
    assert plain["blob"].tolist() == threads["blob"].tolist() == partial["blob"].tolist()
    assert len(set(plain["blob"].tolist())) == N


def test_generator_that_a_decoder_keeps_goes_on_drawing(version):
    """Its draws after the batch are those that a generator of its sample has there."""
    kept = {}

    def decoder(data, rng):
        kept[data] = rng, rng.random(), rng.integers(0, 9, dtype=np.uint32)
        return 0

    batch, numbers = one_batch(version, ["blob"], decode={"blob": decoder}, workers=2, steps=1)
    for ordinal, number in zip(batch.ordinals.tolist(), numbers, strict=True):
        rng, first, second = kept[bytes([number])]
        fresh = field_generator(1, "m", 0, ordinal, "blob")
        assert (first, second) == (fresh.random(), fresh.integers(0, 9, dtype=np.uint32))
        assert rng.random(5).tolist() == fresh.random(5).tolist()


def test_decoder_that_loads_with_a_loader_of_its_own_draws_the_same(version):
    """Both draw in one thread, one inside of the other."""

    def plain(data, rng):
        return rng.integers(2**60, size=2).tolist()

    def decode_with_loader(data, rng):
        first = int(rng.integers(2**60))
        inner, _ = one_batch(version, ["blob"], decode={"blob": plain})
        assert inner["blob"] == expected["blob"]
        return [first, int(rng.integers(2**60))]

    expected, _ = one_batch(version, ["blob"], decode={"blob": plain})
    batch, _ = one_batch(version, ["blob"], decode={"blob": decode_with_loader})
    assert batch["blob"] == expected["blob"]


@pytest.mark.parametrize("decode", [1, "jpg", {"jpg": "fast"}, None, ["jpg"]])
def test_what_decode_takes(version, decode):
    with refusal(InvalidRuntime, what="decode", given=decode):
        one_batch(version, ["jpg"], decode=decode)


def test_decoder_for_a_field_that_is_not_selected(version):
    with refusal(InvalidRuntime, what="decode", given=["mp4"]):
        one_batch(version, ["jpg"], decode={"mp4": loader.video()})


def test_bytes_that_no_decoder_reads_are_named_in_full(memory_root):
    with memory_root.write("bad") as writer:
        for i in range(4):
            writer.add(f"k/{i}", {"jpg": b"\xff\xd8 not a picture", "cls": i})
    plan = loader.plan({"b": memory_root.open("bad@1")}, seed=1, global_batch=4)
    with loader.Loader(plan, 0, 1, workers=0) as batches, pytest.raises(DecodeFailed) as caught:
        next(batches)
    key = plan.batch_ids(0)[0][1]
    address = next(one for one in loader.explain(plan, 0) if one.address.key == key).address
    at = address.fields["jpg"]
    for part in (
        "bad@1",
        address.part,
        "'jpg'",
        f"[{at.offset}:{at.offset + at.nbytes}]",
        repr(key),
        at.path,
    ):
        assert part in str(caught.value)


def test_decoder_of_the_callers_that_fails(version):
    def decoder(data, rng):
        raise RuntimeError("no licence")

    with refusal(DecodeFailed, what="blob", given="RuntimeError", within="sample 'clip/"):
        one_batch(version, ["blob"], decode={"blob": decoder}, workers=2)


@pytest.mark.parametrize("transform", [None, lambda sample, rng: sample])
def test_decoder_that_fails_once_is_called_once_more(version, transform):
    """With the sample read anew, and nothing else of the batch is different."""
    called = []

    def decoder(data, rng):
        called.append(data)
        if data == bytes([3]) and called.count(data) == 1:
            raise RuntimeError("a slip")
        return len(data) + data[0], rng.random()

    def right(data, rng):
        return len(data) + data[0], rng.random()

    plan = loader.plan({"m": version.select("blob", "cls")}, seed=1, global_batch=N)
    options = {"workers": 0, "framework": "numpy", "transform": transform}
    with loader.Loader(plan, 0, 1, decode={"blob": right}, **options) as batches:
        expected = next(batches)
    with loader.Loader(plan, 0, 1, steps=1, decode={"blob": decoder}, **options) as batches:
        batch = next(batches)
        assert batches.metrics()["refetched_total"] == 1
    assert (batch["blob"], batch["cls"].tolist()) == (expected["blob"], expected["cls"].tolist())
    assert sorted(called) == sorted([*(bytes([i]) for i in range(N)), bytes([3])])


def test_field_more_does_not_change_what_a_transform_draws(version):
    def decoder(data, rng):
        return int(rng.integers(2**60))

    def transform(sample, rng):
        return {"noise": rng.random(3)}

    alone, _ = one_batch(version, ["cls"], transform=transform)
    beside, _ = one_batch(version, ["blob", "cls"], transform=transform, decode={"blob": decoder})
    assert alone["noise"].tolist() == beside["noise"].tolist()


def test_transforms_see_decoded_fields_and_decide_the_result(version):
    def transform(sample, rng):
        assert isinstance(rng.bit_generator, np.random.Philox)
        return {"both": np.float32(sample["cls"] + sample["latent.npy"][0, 0]), "noise": rng.random(3)}

    batch, numbers = one_batch(version, ["cls", "latent.npy"], transform=transform, workers=2)
    assert set(batch) == {"both", "noise"}
    assert batch["both"].tolist() == [2 * i for i in numbers]
    assert batch["noise"].shape == (N, 3)
    again, _ = one_batch(version, ["cls", "latent.npy"], transform=transform, workers=0)
    assert again["noise"].tolist() == batch["noise"].tolist()


def test_lambda_is_a_transform_for_threads(version):
    batch, numbers = one_batch(
        version, ["cls"], transform=lambda sample, rng: {"x": -sample["cls"]}, workers=3
    )
    assert batch["x"].tolist() == [-i for i in numbers]


@pytest.mark.parametrize("result", [None, [], {}, 3])
def test_transform_that_returns_nothing(version, result):
    def forgetful(sample, rng):
        return result

    with refusal(TransformFailed, given=result, within="sample 'clip/") as failed:
        one_batch(version, ["cls"], transform=forgetful)
    assert failed.value.what.endswith(".forgetful")


@pytest.mark.parametrize("error", [ValueError("x < 0"), StopIteration("x < 0"), KeyError("x < 0")])
def test_transform_that_raises(version, error):
    def picky(sample, rng):
        raise error

    for workers in (0, 2):
        with refusal(TransformFailed, given=type(error).__name__, within="sample 'clip/") as caught:
            one_batch(version, ["cls"], transform=picky, workers=workers)
        assert caught.value.__cause__ is error
