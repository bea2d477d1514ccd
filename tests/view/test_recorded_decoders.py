"""The viewer without a recipe: it rebuilds the built-in decoders of a training from its run log."""

import io
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import soundfile
from PIL import Image

import loader
from loader.modalities import DECODERS, decode_bytes, find_decoder
from loader.run.trail.trail import CodeFacts, code_facts, parse_start
from penstock.view.replays import replays
from penstock.view.replays.recorded_decoders import rebuilt_decoder
from penstock.view.replays.replays import Replayers, Replays
from tests.view.conftest import train
from tests.view.test_proofs import Viewed, proved, text_of
from tests.view.test_stages import change


def without_cls(data, rng):
    """A decoder of the user."""
    return 7


RECIPES = {
    "image": {"decode": {"jpg": loader.image(size=(24, 24), crop="random")}},
    "crop": {"decode": {"jpg": loader.random_resized_crop((24, 24), flip=0.5)}},
    "bytes": {"decode": {"jpg": decode_bytes}},
    "none": {"decode": False},
    "plain": {},
}


def train_recipe(root, plan, recipe, **trail):
    def function():
        return recipe

    train(root, plan, "one", recipe=function, steps=2, **trail)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("tensors_every", [0, 1])
def test_built_in_decoders_are_proved_without_a_recipe(root, plan, name, tensors_every):
    train_recipe(root, plan, RECIPES[name], tensors_every=tensors_every)
    with Viewed(root, "one", None) as viewed:
        record = viewed.step(1, 0, 1)[1]
        expected = {"planned": True, "bytes": True, "code": True, "tensors": True if tensors_every else None}
        assert proved(record) == expected
        assert (record.stage, viewed.slot(1, 2)[1].stage) == ("trained", "trained")


def test_decoders_by_bucket_are_proved_without_a_recipe(root):
    def photo(height, width):
        sink = io.BytesIO()
        Image.new("RGB", (width, height), "red").save(sink, "PNG")
        return sink.getvalue()

    with root.write("sizes") as writer:
        for number in range(8):
            bucket = "w16h16" if number % 2 else "w32h16"
            size = (16, 16) if number % 2 else (16, 32)
            writer.add(str(number), {"png": photo(*size)}, metadata={"bucket": bucket})
    view = root.open("sizes").select("png")
    plan = loader.plan({"sizes": view}, seed=1, global_batch=2, bucket_by="bucket")
    decode = {"png": loader.by_bucket({"w16h16": loader.image(size="w16h16"), "w32h16": find_decoder("png")})}
    train_recipe(root, plan, {"decode": decode})
    with Viewed(root, "one", None) as viewed:
        for step in (0, 1):
            record = viewed.step(step, 0, 1)[1]
            assert set(proved(record).values()) == {True}, record.proofs


def test_decoder_of_the_user_is_named_without_a_recipe(root, plan):
    train_recipe(root, plan, {"decode": {"cls": without_cls, "jpg": loader.image(size=(24, 24))}})
    with Viewed(root, "one", None) as viewed:
        record = viewed.step(1, 0, 1)[1]
        assert proved(record) == {"planned": True, "bytes": True, "code": None, "tensors": None}
        why = "the decoders of cls do not run without --recipe tests.view.recipes:function"
        assert (text_of(record, "code"), text_of(record, "tensors")) == (why, why)
        assert (record.stage, viewed.slot(1, 2)[1].stage) == ("decoded", "decoded")
        assert viewed.slot(1, 2)[0].decoded["jpg"].shape == (24, 24, 3)


def test_transform_is_shown_what_the_decoders_give(root, plan):
    recipe = {
        "decode": {"jpg": loader.image(size=(24, 24))},
        "transform": lambda sample, rng: {"cls": -sample["cls"]},
    }
    train_recipe(root, plan, recipe)
    with Viewed(root, "one", None) as viewed:
        record = viewed.step(1, 0, 1)[1]
        assert (proved(record)["code"], proved(record)["tensors"], record.stage) == (None, None, "decoded")
        assert text_of(record, "code").startswith("the transform does not run without --recipe")
        assert viewed.slot(1, 2)[0].decoded["jpg"].shape == (24, 24, 3)


def test_changed_file_of_a_built_in_decoder_differs(root, plan, tmp_path):
    train_recipe(root, plan, RECIPES["image"])
    (path,) = (tmp_path / "root/trails/one").glob("start-*.json")
    start = parse_start(path.read_bytes(), path.name)
    decoder = replace(start.decoders["jpg"][""], sha256="0" * 64)
    other = replace(start, decoders={**start.decoders, "jpg": {"": decoder}})
    (tmp_path / "root" / other.key).write_bytes(other.to_json())
    change(tmp_path, "one", "start", lambda _: other.id)
    with Viewed(root, "one", None) as viewed:
        record = viewed.step(1, 0, 1)[1]
        assert proved(record)["code"] is False
        assert "decoders differ: jpg" in text_of(record, "code")


def test_long_audio_of_a_recorded_decoder_is_cut(root, monkeypatch):
    monkeypatch.setattr(replays, "MOST_AUDIO_BYTES", 4 * 8000)
    with root.write("sound") as writer:
        for name, seconds in (("short", 0.5), ("long", 3)):
            sink = io.BytesIO()
            soundfile.write(sink, np.zeros(int(8000 * seconds)), 8000, format="WAV")
            writer.add(name, {"wav": sink.getvalue()})
    plan = loader.plan({"sound": root.open("sound").select("wav")}, seed=1, global_batch=1)
    train_recipe(root, plan, {"decode": {"wav": loader.audio(seconds=0.25, rate_hz=4000)}})
    with Viewed(root, "one", None) as viewed:
        viewed.replayers = Replayers(plain=Replays(root, cut=True))
        by_key = {}
        for step in (0, 1):
            values, record = viewed.slot(step, 0)
            by_key[values.address.key] = values.decoded["wav"].shape, record.stage
    assert by_key == {"short": ((1, 1000), "trained"), "long": ((1, 8000), "decoded")}


@pytest.mark.parametrize(
    ("field", "decoder"),
    [
        ("jpg", loader.image(size=(24, 24), crop="random", alpha="keep")),
        ("png", loader.image(size=(24, 24), bits=16)),
        ("jpg", loader.random_resized_crop((24, 24), area=(0.5, 1.0), flip=0.5)),
        ("mp4", loader.video(frames=4, stride=2, size=(24, 24), at=Fraction(1, 3), times=True)),
        ("mp4", loader.video(at=[0, 0.5], crop=(1, 2, 3, 4))),
        ("other.mp4", loader.video(at="mp4")),
        ("wav", loader.audio(seconds=1.5, rate_hz=16000, channels="mono", pad=True)),
        ("jpg", decode_bytes),
        *((f"x.{word}", find_decoder(f"x.{word}")) for word in (*DECODERS, "run", "bin")),
    ],
)
def test_rebuilt_decoder_is_the_recorded_one(field, decoder):
    facts = code_facts(decoder)
    assert rebuilt_decoder(field, facts) == decoder
    assert code_facts(rebuilt_decoder(field, facts)) == facts


@pytest.mark.parametrize(
    "options",
    [
        "ImageDecoder(size=__import__('os').abort())",
        "ImageDecoder(size=(24, 24), crop='rand",
        "VideoDecoder(frames=4)",
        "ImageDecoder((24, 24))",
        "ImageDecoder(**{})",
        "ImageDecoder(size=(0, 24))",
        "ImageDecoder(shape=(24, 24))",
        f"ImageDecoder(size={'(' * 400}1{')' * 400})",
        "ImageDecoder(size=Fraction(1, 0))",
        "ImageDecoder(size=None)" + " " * 1000,
        "",
    ],
)
def test_options_that_are_no_decoder_are_not_built(options):
    facts = CodeFacts(name=code_facts(loader.image()).name, options=options)
    assert rebuilt_decoder("jpg", facts) is None


@pytest.mark.parametrize(
    "options",
    [
        "VideoDecoder(frames=1000)",
        "VideoDecoder(frames=400, size=(1080, 1920))",
        "VideoDecoder(frames=150, size=(1080, 1920), bits=16)",
    ],
)
def test_clip_that_is_too_large_for_a_viewer_is_not_built(options):
    facts = CodeFacts(name=code_facts(loader.video()).name, options=options)
    assert rebuilt_decoder("mp4", facts) is None


def test_fraction_of_a_text_is_not_built():
    options = "VideoDecoder(at=Fraction('1e9999'))"  # 1e999999999 would take hours
    facts = CodeFacts(name=code_facts(loader.video()).name, options=options)
    assert rebuilt_decoder("mp4", facts) is None
