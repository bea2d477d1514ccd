"""Roots whose cards are known, and a card as a value to put texts into."""

import io
from dataclasses import replace

import av
import numpy as np
import pytest
from PIL import Image

import loader
from penstock.card.tally import Counts
from penstock.card.value import Card, CardColumn, CardKind, Check, Example, Group, History
from tests.wav_files import pcm_wav


def jpeg(width, height, colour):
    Image.new("RGB", (width, height), colour).save(sink := io.BytesIO(), "JPEG")
    return sink.getvalue()


def wav(seconds, rate_hz=8000):
    tone = 8000 * np.sin(np.arange(round(seconds * rate_hz)) / 4)
    return pcm_wav(tone, rate_hz)


def mp4(n_frames, grey=0):
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=25, options={"g": "12"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(n_frames):
            pixels = np.full((48, 64, 3), (grey + 5 * number) % 256, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode(None))
    return sink.getvalue()


@pytest.fixture(scope="session")
def media():
    """The makers: media.jpeg(width, height, colour), media.wav(seconds), media.mp4(n_frames)."""
    return type("Media", (), {"jpeg": staticmethod(jpeg), "wav": staticmethod(wav), "mp4": staticmethod(mp4)})


def photos(root, numbers, **more):
    with root.write("mixed", group="image", groups={"caption.txt": "captions"}, part_samples=7) as writer:
        for i in numbers:
            fields = {
                "jpg": jpeg(48 + 16 * (i % 3), 48, (i, 90, 9)),
                "cls": i % 4,
                "caption.txt": f"photo {i}",
            }
            metadata = {
                "kind": "image",
                "label": f"class {i % 4}",
                "licence": ("CC-BY-4.0", "cc0-1.0", "unknown", None)[i % 4],
                "width_px": 48 + 16 * (i % 3),
                "height_px": 48,
                "score": i / 8,
            }
            source = {
                "raw_uri": f"s3://key:secret@bucket/in/photos/{i // 2}.png",
                "raw_key": f"photos/{i // 2}.png",
                "split": "validation" if i % 5 == 0 else "train",
            }
            writer.add(f"p{i}", fields, metadata=metadata | more, source=source)


def clips(root):
    with root.write("mixed", group="video", groups={"sound.wav": "sound"}) as writer:
        for i in range(4):
            fields = {"mp4": mp4(25 + i, grey=20 * i), "sound.wav": wav(1.0)}
            metadata = {
                "kind": "video",
                "duration_s": 1 + i / 25,
                "width_px": 64,
                "height_px": 48,
                "clip_mode": "canonical",
            }
            source = {"raw_uri": f"s3://bucket/in/v{i}.mp4", "raw_key": f"v{i}.mp4", "split": "train"}
            writer.add(f"v{i}", fields, metadata=metadata | {"licence": "CC-BY-NC-4.0"}, source=source)


def sounds(root):
    with root.write("mixed", group="audio") as writer:
        for i in range(3):
            metadata = {"kind": "audio", "duration_s": 0.5 * (i + 1) if i else None, "licence": "CC-BY-4.0"}
            writer.add(f"s{i}", {"wav": wav(0.5 * (i + 1))}, metadata=metadata, source={"split": "train"})


def texts(root):
    with root.write("mixed", group="text") as writer:
        for i, language in enumerate(("en", "pt-BR", None)):
            writer.add(
                f"t{i}", {"txt": f"A document, number {i}."}, metadata={"kind": "text", "language": language}
            )


@pytest.fixture(scope="session")
def mixed_root(tmp_path_factory):
    """mixed@1: 20 photos; @2: 4 clips; @3: 3 sounds; @4: 3 documents; @5: without p1 and p2; @6: 10 photos more."""
    path = tmp_path_factory.mktemp("mixed") / "root"
    with loader.Root(path) as root:
        photos(root, range(20))
        clips(root)
        sounds(root)
        texts(root)
        root.exclude("mixed", ["p1", "p2"], reason="blurred")
        photos(root, range(20, 30))
    return str(path)


@pytest.fixture
def blank():
    """blank(caption=..., label=..., licence=..., key=..., reason=...): a card that shows these texts everywhere."""

    picture = jpeg(8, 8, "red")

    def card(caption="", label="cat", licence="CC0-1.0", key="k", reason="blurred"):
        one = Counts(counts=((label, 3),))
        kind = CardKind(
            name="image",
            modality="image",
            samples=3,
            splits={label: 3},
            raw_objects=3,
            labels=one,
            languages=one,
        )
        example = Example(
            key=key,
            kind="image",
            modality="image",
            split=label,
            facts={"label": label, "licence": licence},
            caption=caption,
            picture=picture,
            media_type="image/jpeg",
            width_px=8,
            height_px=8,
            alt="photo",
        )
        broken = replace(example, picture=b"", trouble=reason)
        made = History(
            versions=1,
            publishes=1,
            batches=1,
            accounted=1,
            counts={"landed": 3},
            refused=(("rejected", reason, label, 1),),
            policies=((reason, 1),),
            featurizers=((label, licence, reason, 1),),
            filters=((reason, 1),),
            checks=(Check(name=label, batches=1, failed=1, newest=reason),),
            run={"batch": reason},
        )
        group = Group(name=label, nbytes=1, rows=3, parts=1, fields={"jpg": 1}, modalities=("image",))
        return Card(
            dataset="d",
            number=1,
            id="v-" + "0" * 64,
            parent=None,
            created="2026-01-01 00:00:00 UTC",
            samples=3,
            excluded_samples=1,
            excluded=Counts(counts=((reason, 1),)),
            kinds=(kind,),
            groups=(group,),
            columns=(CardColumn(name=label, type="string", counts=Counts(counts=((caption, 1),))),),
            licences=Counts(counts=((licence, 2),), unknown=1),
            sources=Counts(counts=((reason, 3),)),
            folders=one,
            subjects=None,
            raw_objects=3,
            history=made,
            examples=(example, broken),
            warnings=(reason,),
            unknown=(reason,),
        )

    return card
