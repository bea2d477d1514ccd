"""Episodes of RLDS: every feature of every step is in the version, by the tree of `features.json`."""

import io
import json

import numpy as np
import pytest
from PIL import Image

import loader
from loader.errors import Corrupt, InvalidSample, PenstockError
from loader.modalities import find_decoder
from tests.penstock.formats.builders import records
from tests.penstock.formats.versions import contents, importing
from tests.refusals import refusal

STEPS = (3, 1)
DEPTH = np.arange(0, 60_000, 10_000, np.uint16).reshape(2, 3, 1)


def tensor(dtype, *shape, **more):
    return {
        "tensor": {"shape": {"dimensions": list(map(str, shape))} if shape else {}, "dtype": dtype, **more}
    }


def tree(**features):
    return {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }


def of_steps(**features):
    return {"sequence": {"feature": tree(**features), "length": "-1"}}


def image(dtype, *shape):
    return {
        "image": {
            "shape": {"dimensions": list(map(str, shape))},
            "dtype": dtype,
            "encodingFormat": "png",
        }
    }


FEATURES = tree(
    steps=of_steps(
        action=tensor("float32", 7, encoding="none"),
        is_last=tensor("bool"),
        language_instruction={"text": {}},
        observation=tree(
            image=image("uint8", 16, 24, 3),
            depth=image("uint16", 2, 3, 1),
            grid=tensor("uint8", 2, 2),
        ),
    ),
    episode_metadata=tree(file_path={"text": {}}, success=tensor("bool"), home=tensor("float32", 3)),
)


def picture(number, size=(24, 16)):
    sink = io.BytesIO()
    Image.new("RGB", size, (20 * number, 40, 200)).save(sink, "PNG")
    return sink.getvalue()


def depth(number):
    sink = io.BytesIO()
    Image.fromarray(DEPTH[..., 0] + np.uint16(number)).save(sink, "PNG")
    return sink.getvalue()


def episode(steps, number=0):
    return {
        "steps/action": [float(k) for k in range(7 * steps)],
        "steps/is_last": [int(k == steps - 1) for k in range(steps)],
        "steps/language_instruction": ["heb \u00e4".encode()] * steps,
        "steps/observation/image": [picture(number + k) for k in range(steps)],
        "steps/observation/depth": [depth(number + k) for k in range(steps)],
        "steps/observation/grid": [k % 256 for k in range(4 * steps)],
        "episode_metadata/file_path": [b"/data/%d.h5" % number],
        "episode_metadata/success": [number % 2],
        "episode_metadata/home": [0.5, 1.5, 2.5],
    }


@pytest.fixture
def write(tmp_path):
    """write(episodes, features): a dataset with one file of records for each split."""

    def write(episodes=None, features=FEATURES, name="d-train.tfrecord-00000-of-00001"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in/features.json").write_text(json.dumps(features))
        given = [episode(n, k) for k, n in enumerate(STEPS)] if episodes is None else episodes
        data = b"".join(records.record(records.example(one)) for one in given)
        (tmp_path / "in" / name).write_bytes(data)

    return write


def import_rlds(tmp_path, *without):
    return importing("rlds", tmp_path / "in", tmp_path / "root", without=without)[0]


def test_each_episode_is_a_sample_with_its_features(write, tmp_path):
    write()
    done = import_rlds(tmp_path)
    assert (done.failures, done.samples) == ([], 2)
    version = loader.Root(tmp_path / "root").open("d")
    found = contents(version)
    assert list(found) == ["d-train-00000-of-00001/000000000", "d-train-00000-of-00001/000000001"]
    for number, (steps, (fields, columns)) in enumerate(zip(STEPS, found.values(), strict=True)):
        arrays = {name: np.load(io.BytesIO(data)) for name, data in fields.items() if name.endswith(".npy")}
        assert (arrays["action.npy"] == np.arange(7 * steps, dtype=np.float32).reshape(steps, 7)).all()
        assert arrays["is_last.npy"].tolist() == [k == steps - 1 for k in range(steps)]
        assert (arrays["observation.grid.npy"].dtype, arrays["observation.grid.npy"].shape) == (
            "uint8",
            (steps, 2, 2),
        )
        assert arrays["episode_metadata.home.npy"].tolist() == [0.5, 1.5, 2.5]
        assert json.loads(fields["language_instruction.json"]) == ["heb \u00e4"] * steps
        assert (columns["n_steps"], columns["split"]) == (steps, "train")
        assert columns["episode_metadata_file_path"] == f"/data/{number}.h5"
        frames = loader.video(frames=steps, size=(16, 24))(fields["observation.image.mp4"], None)
        assert arrays["observation.depth.npy"].dtype == np.uint16
        depths = [DEPTH + np.uint16(number + k) for k in range(steps)]
        assert np.array_equal(arrays["observation.depth.npy"], np.stack(depths))
        wanted = [find_decoder("x.png")(picture(number + k), None) for k in range(steps)]
        assert np.array_equal(np.asarray(frames), np.stack(wanted))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps/action": [1.0] * 20}, "steps/action has 20 float values, and a shape of [7]"),
        ({"steps/action": [1.0] * 14}, "has values of"),
        ({"steps/observation/grid": [256] * 12}, "has numbers that are not uint8"),
        ({"steps/language_instruction": [b"\xff"] * 3}, "is not UTF-8"),
        (
            {"steps/observation/image": [picture(1), picture(2), picture(3, (8, 8))]},
            "of several kinds or sizes",
        ),
        ({"steps/observation/image": [b"\x89PNG\r\n\x1a\n"] * 3}, "an image is damaged"),
        ({"steps/observation/image": [b"?"] * 3}, "read are jpeg, png"),
        (
            {"steps/observation/depth": [depth(0), depth(1), picture(2)]},
            "not PNG of one size, grey, of 16 bits",
        ),
        ({"steps/observation/depth": [depth(0)[:40]] * 3}, "steps/observation/depth: "),
        ({"steps/observation/image": [1, 2, 3]}, "has int64 values, and is of bytes"),
        ({"episode_metadata/file_path": [b"a", b"b"]}, "expected one value per episode, got 2"),
    ],
)
def test_episode_that_is_wrong_is_named_with_its_feature(change, said, write, tmp_path):
    write([episode(3), episode(3) | change])
    (why,) = import_rlds(tmp_path).failures
    assert said in why
    assert "d-train.tfrecord-00000-of-00001, record 1" in why


@pytest.mark.parametrize(
    ("features", "error", "fault"),
    [
        ([], Corrupt, {"accepted": "features.json of TensorFlow Datasets"}),
        (tree(a=tensor("float32")), InvalidSample, {"what": "steps"}),
        (
            tree(steps=of_steps(a=tensor("float32", 2, encoding="zlib"))),
            InvalidSample,
            {"what": "steps/a"},
        ),
        (tree(steps=of_steps(a=tensor("float32", -1))), InvalidSample, {"what": "steps/a"}),
        (
            tree(steps=of_steps(a={"sequence": {"feature": tensor("float32")}})),
            InvalidSample,
            {"what": "steps/a"},
        ),
        (tree(steps=of_steps(a=image("uint16", 2, 2, 3))), InvalidSample, {"what": "steps/a"}),
        (
            tree(steps=of_steps(b=tensor("float32")), a=image("float32", 2, 2, 1)),
            InvalidSample,
            {"what": "a"},
        ),
        (
            tree(steps=of_steps(a=tensor("what"))),
            Corrupt,
            {"accepted": "features.json of TensorFlow Datasets"},
        ),
    ],
)
def test_features_that_are_not_read_are_named(features, error, fault, write, tmp_path):
    write(features=features)
    with refusal(error, where=f"{tmp_path}/in/features.json", **fault):
        import_rlds(tmp_path)


def test_features_are_left_out_by_either_name_and_other_files_refused(write, tmp_path):
    write([{name: one for name, one in episode(2).items() if "image" not in name}])
    without = "steps/action", "steps/observation/depth", "observation.grid", "observation.image"
    assert import_rlds(tmp_path, *without).samples == 1
    (fields, _), *_ = contents(loader.Root(tmp_path / "root").open("d")).values()
    assert sorted(fields) == ["episode_metadata.home.npy", "is_last.npy", "language_instruction.json"]
    write(name="d-val.array_record-00000-of-00001")
    with refusal(
        PenstockError, where=f"{tmp_path}/in/d-val.array_record-00000-of-00001", accepted="TFRecord"
    ):
        import_rlds(tmp_path)
