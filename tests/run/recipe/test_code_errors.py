"""An error of a decoder's code, or of the environment, ends the training: no sample is substituted for it."""

import errno
import functools
import itertools
import sys

import numpy as np
import pytest

import loader
from loader.errors import DecodeFailed, InvalidRuntime, InvalidSignature, TransformFailed
from loader.modalities import array
from loader.run.ledger import read_ledger
from tests.refusals import refusal
from tests.run.numbered_video import video

N = 12
EXECUTORS = {
    "caller": {"workers": 0},
    "threads": {"executor": "threads", "workers": 2},
    "processes": {"executor": "processes", "workers": 1},
}
CODE_ERRORS = [
    TypeError("unsupported operand"),
    AttributeError("no attribute 'resize'"),
    NameError("name 'nump' is not defined"),
    ModuleNotFoundError("No module named 'nump'"),
]
ENVIRONMENT_ERRORS = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EMFILE, "Too many open files"),
    PermissionError(errno.EACCES, "Permission denied"),
    MemoryError("no memory left"),
    RuntimeError("can't start new thread"),
]
names = itertools.count()


@pytest.fixture
def root(tmp_path, samples):
    with loader.Root(str(tmp_path / f"root-{next(names)}")) as root:
        samples.write(root, "photos", range(N), fields=("cls", "txt"))
        yield root


@pytest.fixture
def plan(root):
    return loader.plan({"photos": root.open("photos@1")}, seed=3, global_batch=6)


def raises(error):
    def decode(data, rng):
        raise error

    return decode


def first_error(plan, **options):
    """The error of the first batch that raises, with a budget that would allow every substitute."""
    with loader.Loader(plan, 0, 1, framework="numpy", corrupt_budget=1.0, **options) as batches:
        with pytest.raises(BaseException) as caught:
            next(batches)
        assert batches.metrics()["substituted_total"] == 0
    return caught.value


@pytest.mark.parametrize("executor", EXECUTORS)
def test_decoder_error_of_code_is_raised_by_every_executor(root, plan, executor):
    error = TypeError("unsupported operand")
    raised = first_error(plan, decode={"cls": raises(error)}, **EXECUTORS[executor])
    assert type(raised) is TypeError
    assert str(raised) == "unsupported operand"
    (note, *_) = raised.__notes__
    for part in ("photos@1/", "sample 'photos/", "field 'cls'", "raises.<locals>.decode"):
        assert part in note
    assert not read_ledger(root, plan)


@pytest.mark.parametrize("error", [*CODE_ERRORS, *ENVIRONMENT_ERRORS], ids=repr)
def test_decoder_error_unrelated_to_the_bytes_is_raised_without_substitutes(root, plan, error):
    raised = first_error(plan, decode={"cls": raises(error)}, workers=0)
    assert raised is error
    assert "while decoding photos@1/" in raised.__notes__[0]
    assert not read_ledger(root, plan)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_decoder_error_of_the_environment_is_raised_by_every_executor(root, plan, executor):
    error = OSError(errno.ENOSPC, "No space left on device")
    raised = first_error(plan, decode={"cls": raises(error)}, **EXECUTORS[executor])
    assert type(raised) is OSError
    assert raised.errno == errno.ENOSPC
    assert "while decoding photos@1/" in raised.__notes__[0]
    assert not read_ledger(root, plan)


def test_decoder_error_of_code_is_raised_at_the_first_call(plan):
    calls = []

    def decode(data, rng):
        calls.append(data)
        return data.shape

    raised = first_error(plan, decode={"cls": decode}, workers=0)
    assert isinstance(raised, AttributeError)
    assert len(calls) == 1


def test_decoder_call_with_wrong_argument_types_is_an_error_of_code(plan):
    """No frame of Python lies below the call."""
    raised = first_error(plan, decode={"cls": int}, workers=0)
    assert isinstance(raised, TypeError)
    assert "builtins.int" in raised.__notes__[0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_decoder_error_about_the_bytes_keeps_its_substitute(root, plan, executor):
    def decode(data, rng):
        if int(data) == 4:
            raise ValueError("refused")
        return int(data)

    options = {"decode": {"cls": decode}, "corrupt_budget": 1.0, "steps": 2, **EXECUTORS[executor]}
    with loader.Loader(plan, 0, 1, framework="numpy", **options) as batches:
        substitutions = [one for batch in batches for one in batch.substitutions]
    assert {one.address.key for one in substitutions} == {"photos/004"}
    assert len(read_ledger(root, plan)) == len(substitutions)


def test_type_error_inside_a_builtin_decoder_is_about_the_bytes(plan):
    """Libraries raise it for damaged bytes, below the decoder that the user's function calls."""

    def decode(data, rng):
        return array.decode(3)  # type: ignore[arg-type]

    assert type(first_error(plan, decode={"cls": decode}, workers=0)) is DecodeFailed


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("raise OSError('libsndfile.so: cannot open shared object file')", OSError),
        ("raise ValueError('numpy.dtype size changed')", ValueError),
        ("def broken(:", SyntaxError),
    ],
)
def test_error_of_a_decoder_import_is_raised(plan, tmp_path, monkeypatch, body, kind):
    name = f"broken_package_{next(names)}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def decode(data, rng):
        return __import__(name).decode(data)

    assert type(first_error(plan, decode={"cls": decode}, workers=0)) is kind


@pytest.mark.parametrize(
    "error", [SyntaxError("broken PNG file"), KeyError("frame"), UnicodeError("not UTF-8")]
)
def test_decoder_error_that_libraries_raise_for_damage_is_about_the_bytes(plan, error):
    assert type(first_error(plan, decode={"cls": raises(error)}, workers=0)) is DecodeFailed


def test_packed_document_is_not_masked_for_an_error_of_code(root):
    with root.write("docs") as writer:
        for number in range(8):
            writer.add(f"{number}", {"tokens.npy": np.arange(5, dtype=np.int32)}, metadata={"n": 5})
    packed = loader.pack("tokens.npy", 10, pad_id=0)
    plan = loader.plan({"docs": root.open("docs@1")}, seed=1, global_batch=2, pack=packed)
    raised = first_error(plan, decode={"tokens.npy": raises(TypeError("axis"))}, workers=0)
    assert type(raised) is TypeError
    assert "sample '" in raised.__notes__[0]


def test_window_field_is_not_substituted_for_an_error_of_code(root):
    with root.write("robot") as writer:
        for number in range(3):
            writer.add(f"{number}", {"action.npy": np.zeros((6, 2), np.float32), "task.txt": "pick"})
    view = loader.windows(root.open("robot@1"), anchor="action.npy", at={"action.npy": loader.rows(0, 1)})
    plan = loader.plan({"robot": view}, seed=1, global_batch=4)
    raised = first_error(plan, decode={"task.txt": raises(NameError("nump"))}, workers=0)
    assert type(raised) is NameError
    assert "field 'task.txt'" in raised.__notes__[0]


def test_field_beside_a_video_is_not_substituted_for_an_error_of_code(root):
    with root.write("clips") as writer:
        for number in range(3):
            writer.add(f"{number}", {"mp4": video(4), "cls": number})
    plan = loader.plan({"clips": root.open("clips@1")}, seed=1, global_batch=2)
    decode = {"mp4": loader.video(frames=2), "cls": raises(AttributeError("width"))}
    assert type(first_error(plan, decode=decode, workers=0)) is AttributeError


@pytest.mark.parametrize("workers", [0, 2])
def test_transform_error_of_code_is_raised_without_substitutes(root, plan, workers):
    def transform(sample, rng):
        return sample.resize(3)

    raised = first_error(plan, transform=transform, workers=workers)
    assert type(raised) is TransformFailed
    assert "raised AttributeError on photos@1/" in str(raised)
    assert isinstance(raised.__cause__, AttributeError)
    assert not read_ledger(root, plan)


def test_replay_raises_an_error_of_code_instead_of_padding(root, plan):
    replay = loader.Replay(plan, [], decode={"cls": raises(TypeError("axis"))})
    with replay, pytest.raises(TypeError) as caught:
        replay.batch(0, 0, 1)
    assert caught.value.args == ("axis",)
    assert "field 'cls'" in caught.value.__notes__[0]


def test_torch_dataset_raises_an_error_of_code(plan):
    from torch.utils.data import DataLoader

    for num_workers in (0, 1):
        dataset = loader.torch_dataset(plan, 0, 1, decode={"cls": BrokenDecoder()}, corrupt_budget=1.0)
        with pytest.raises(TypeError, match="axis"):
            next(iter(DataLoader(dataset, batch_size=None, num_workers=num_workers)))


class BrokenDecoder:
    def __call__(self, data, rng):
        raise TypeError("axis")


def no_arguments():
    return 0


def one_argument(data):
    return 0


def three_arguments(data, rng, place):
    return 0


class OneArgument:
    def __call__(self, data):
        return 0


def keyword_only(data, *, rng):
    return 0


@pytest.mark.parametrize(
    "function",
    [
        no_arguments,
        one_argument,
        three_arguments,
        keyword_only,
        OneArgument(),
        functools.partial(one_argument, data=b""),
        lambda data: 0,
    ],
)
def test_function_with_other_arguments_is_refused_at_once(plan, function):
    name = {"no_arguments", "one_argument", "three_arguments", "keyword_only", "OneArgument", "<lambda>"}
    refused = [
        lambda: loader.Loader(plan, 0, 1, decode={"cls": function}),
        lambda: loader.Loader(plan, 0, 1, transform=function),
        lambda: loader.torch_dataset(plan, 0, 1, decode={"cls": function}),
        lambda: loader.Replay(plan, [], transform=function),
    ]
    for call in refused:
        with pytest.raises(InvalidSignature) as caught:
            call()
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, InvalidRuntime)
        assert any(one in str(caught.value) for one in name)


def test_function_of_one_bucket_with_other_arguments_is_refused_at_once(root):
    view = root.open("photos@1")
    plan = loader.plan({"photos": view}, seed=3, global_batch=2, bucket_by="even")
    labels = sorted({source.bucket for source in plan.sources.values()})
    decode = loader.by_bucket(lambda label: one_argument if label == labels[0] else (lambda data, rng: 0))
    with refusal(InvalidSignature, what=f"decode['cls'] of bucket '{labels[0]}'", given="(data)"):
        loader.Loader(plan, 0, 1, decode={"cls": decode})


def with_rng(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(arguments[0])

    return call


@pytest.mark.parametrize(
    "decoder",
    [
        with_rng(one_argument),
        lambda *arguments: 0,
        lambda data, rng, scale=2: 0,
        functools.partial(three_arguments, place=None),
    ],
)
def test_function_that_accepts_the_arguments_is_called(plan, decoder):
    with loader.Loader(plan, 0, 1, decode={"cls": decoder}, framework="numpy", workers=0) as batches:
        assert next(batches)["cls"].tolist() == [0] * 6
