"""The process of a recipe: it may hang, die or fail, and the viewer goes on with decoded values."""

import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.errors import InvalidRuntime, TransformFailed, WorkerFailed
from penstock.view.inspect.shown_batch import batch_and_samples, show_batch
from penstock.view.inspect.slot_record import slot_values
from penstock.view.inspect.step_record import step_record, step_values
from penstock.view.kinds.array_values import as_array
from penstock.view.replays.recipe_process import RecipeProcess
from penstock.view.replays.replayed_values import StepPart, itself, slot_itself
from penstock.view.replays.replays import Replayers, Replays
from penstock.view.replays.training import Training
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until

FILE = Path(__file__).with_name("recipes.py")


@pytest.fixture
def start_process(trained):
    """start_process(recipe, limit_s): the process of a recipe, and the training `one`."""
    opened = []

    def ask(recipe, limit_s=60.0):
        root = loader.Root(trained)
        process, training = RecipeProcess(root, recipe, limit_s=limit_s), Training(root, "one")
        opened.extend((process, training, root))
        return process, training

    yield ask
    for one in opened:
        one.close()


def test_values_of_the_process_are_those_of_this_one(start_process, trained):
    from tests.view import recipes

    process, training = start_process(f"{FILE}:recipe")
    setting = training.setting(2, recipe=True)
    with loader.Root(trained) as root:
        here = Replays(root, recipes.recipe())
        a, b = (one.part(setting, StepPart(2, 0, 1), show_batch) for one in (process, here))
        assert (a.digest, a.crc32c) == (b.digest, b.crc32c)
        assert [one.fields for one in a.slots] == [one.fields for one in b.slots]
        one, two = process.slot(setting, 2, 3, itself), here.slot(setting, 2, 3, itself)
        np.testing.assert_array_equal(one.trained["jpg"], two.trained["jpg"])
        assert (one.draws, one.placements, one.address) == (two.draws, two.placements, two.address)
        assert {name: fact.sha256 for name, fact in process.functions(setting).transforms.items()} == {
            name: fact.sha256 for name, fact in here.functions(setting).transforms.items()
        }
        here.close()


def test_transform_that_hangs_is_ended_and_decoded_values_are_shown(start_process, trained):
    process, training = start_process("tests.view.recipes:hanging", limit_s=2.0)
    replayers = Replayers(plain=Replays(training.root), recipe=process)
    shown, trouble = step_values(training, replayers, 1, 0, 1, show_batch)
    assert "did not answer in 2 s" in trouble
    assert all("channels last" in one.fields[0].lines[0] for one in shown.slots)
    record = step_record(training, shown, None, trouble)
    assert {one.name: one.proved for one in record.proofs} == {
        "planned": True,
        "bytes": True,
        "code": None,
        "tensors": None,
    }
    replayers.plain.close()


def test_process_that_dies_is_told_and_replaced(start_process):
    process, training = start_process("tests.view.recipes:dying")
    setting = training.setting(1, recipe=True)
    for _ in range(2):
        died = "died while making a part"
        with refusal(WorkerFailed, what="process of --recipe", where=process.recipe, given=died):
            process.part(setting, StepPart(1, 0, 1), show_batch)
    assert process.functions(setting).transforms


def test_value_that_cannot_leave_its_process_is_told(start_process):
    process, training = start_process("tests.view.recipes:unsendable")
    with pytest.raises(TransformFailed):
        process.slot(training.setting(1, recipe=True), 1, 0, itself)
    replayers = Replayers(plain=Replays(training.root), recipe=process)
    values, trouble = slot_values(training, replayers, 1, 0, itself)
    assert "generator" in trouble
    assert set(values.decoded) == {"jpg", "cls"}
    replayers.plain.close()


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("mistaken", ("AttributeError: ", "tests.view.recipes._mistaken", "field 'cls'")),
        ("one_argument", ("tests.view.recipes._one_argument(sample) cannot be called with (sample, rng)",)),
    ],
)
def test_mistake_of_a_recipe_is_named_and_decoded_values_are_shown(start_process, recipe, words):
    process, training = start_process(f"tests.view.recipes:{recipe}")
    replayers = Replayers(plain=Replays(training.root), recipe=process)
    values, trouble = slot_values(training, replayers, 1, 0, itself)
    assert all(part in trouble for part in words)
    assert set(values.decoded) == {"jpg", "cls"}
    replayers.plain.close()


@pytest.mark.parametrize(
    ("recipe", "error", "fault"),
    [
        (
            "tests.view.recipes:raising",
            TransformFailed,
            {"what": "--recipe", "given": "ValueError: no such file: labels.csv"},
        ),
        (
            "tests.view.recipes:nothing",
            InvalidRuntime,
            {"what": "result of --recipe", "given": "NoneType"},
        ),
        (
            "tests.view.recipes:absent",
            InvalidRuntime,
            {"what": "function", "where": "tests.view.recipes", "given": "absent"},
        ),
        ("tests.view.nowhere:recipe", TransformFailed, {"what": "module", "given": "tests.view.nowhere"}),
        (
            f"{FILE.parent}/nowhere.py:recipe",
            InvalidRuntime,
            {"what": "file of --recipe", "given": f"{FILE.parent}/nowhere.py"},
        ),
    ],
)
def test_recipe_that_cannot_be_had_is_told(start_process, recipe, error, fault):
    process, training = start_process(recipe)
    with refusal(error, **fault):
        process.functions(training.setting(1, recipe=True))


PLAIN = "def recipe():\n    return {'decode': True}\n"


@pytest.mark.parametrize(
    ("code", "error", "fault"),
    [
        ("import os\nos._exit(3)", WorkerFailed, "died while starting"),
        ("import sys\nsys.exit('--lr is needed')", TransformFailed, "SystemExit: --lr is needed"),
        ("import os\ndef recipe(): os._exit(0)", WorkerFailed, "died while starting"),
    ],
)
def test_recipe_that_ends_its_process_is_told(start_process, tmp_path, code, error, fault):
    (tmp_path / "train.py").write_text(code)
    process, training = start_process(f"{tmp_path}/train.py:recipe")
    replayers = Replayers(plain=Replays(training.root), recipe=process)
    with refusal(error, where=process.recipe, given=fault):
        process.functions(training.setting(1, recipe=True))
    values, trouble = slot_values(training, replayers, 1, 0, itself)
    assert trouble
    assert set(values.decoded) == {"jpg", "cls"}
    replayers.plain.close()


def test_file_of_a_package_may_use_its_relative_imports(start_process, tmp_path):
    package = tmp_path / "lab" / "vision"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "augment.py").write_text("from ..shared import same")
    (package.parent / "shared.py").write_text("def same(sample, rng):\n    return sample\n")
    (package / "train.py").write_text(
        "from .augment import same\ndef recipe():\n    return {'transform': same}\n"
    )
    process, training = start_process(f"{package}/train.py:recipe")
    found = process.functions(training.setting(1, recipe=True))
    assert found.transforms[""].name == "lab.shared:same"


@pytest.mark.parametrize("name", ["loader", "json", "numpy"])
def test_file_with_the_name_of_a_module_in_use_takes_no_place_of_it(start_process, tmp_path, name):
    (tmp_path / f"{name}.py").write_text(PLAIN)
    process, training = start_process(f"{tmp_path}/{name}.py:recipe")
    assert process.slot(training.setting(1, recipe=True), 1, 0, itself).decoded["jpg"].ndim == 3


def test_recipe_that_moves_to_another_folder_finds_the_root(start_process, trained, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(f"import os\nos.chdir('/')\n{PLAIN}")
    monkeypatch.chdir(trained.parent)
    with loader.Root(trained.name) as root:
        process, training = RecipeProcess(root, f"{tmp_path}/train.py:recipe"), Training(root, "one")
        assert process.slot(training.setting(1, recipe=True), 1, 0, itself).address.key
        process.close()
        training.close()


def test_recipe_prints_to_stderr_alone(start_process, tmp_path, capfd):
    (tmp_path / "train.py").write_text(f"import os\nprint('loud')\nos.system('echo louder')\n{PLAIN}")
    process, training = start_process(f"{tmp_path}/train.py:recipe")
    process.functions(training.setting(1, recipe=True))
    process.close()
    out, err = capfd.readouterr()
    assert (out, "louder" in err) == ("", True)


def test_recipe_may_start_processes_and_they_end_with_it(start_process, tmp_path):
    (tmp_path / "train.py").write_text(
        "import multiprocessing, os, pathlib, time\n"
        "def recipe():\n"
        "    helper = multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,))\n"
        "    helper.start()\n"
        "    pathlib.Path(__file__).with_name('pid').write_text(str(helper.pid))\n"
        "    return {'transform': dies}\n"
        "def dies(sample, rng):\n"
        "    os._exit(3)\n"
    )
    process, training = start_process(f"{tmp_path}/train.py:recipe")
    with refusal(WorkerFailed, where=process.recipe, given="died while making a slot"):
        process.slot(training.setting(1, recipe=True), 1, 0, itself)
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/status")
    # One that is killed is init's until it is waited for.
    until(lambda: not status.exists() or "State:\tZ" in status.read_text(), "the helper lives on")


def test_ctrl_c_is_the_viewers_business(start_process, capfd):
    process, training = start_process("tests.view.recipes:recipe")
    setting = training.setting(1, recipe=True)
    process.functions(setting)
    os.kill(process._process.pid, signal.SIGINT)
    assert process.slot(setting, 1, 0, itself).trained
    process.close()
    assert "KeyboardInterrupt" not in capfd.readouterr().err


def test_recipe_that_hangs_is_not_waited_for_at_the_end(start_process, tmp_path):
    (tmp_path / "train.py").write_text(
        "import pathlib, time\n"
        "def recipe():\n"
        "    pathlib.Path(__file__).with_name('hangs').touch()\n"
        "    time.sleep(600)\n"
    )
    process, training = start_process(f"{tmp_path}/train.py:recipe", limit_s=600.0)
    told = []

    def ask():
        try:
            process.functions(training.setting(1, recipe=True))
        except WorkerFailed as error:
            told.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until((tmp_path / "hangs").exists)
    process.stop()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()
    ask()
    assert "ended with the viewer" in str(told[1])


def test_value_of_a_class_of_the_recipes_module_is_told(start_process, tmp_path):
    (tmp_path / "train.py").write_text(
        "class Own:\n    pass\n"
        "def recipe():\n    return {'transform': made}\n"
        "def made(sample, rng):\n    return {'own': Own()}\n"
    )
    process, training = start_process(f"{tmp_path}/train.py:recipe")
    with refusal(TransformFailed, what="value of the transform"):
        process.slot(training.setting(1, recipe=True), 1, 0, itself)


@pytest.mark.parametrize("recipe", ["train", ":recipe", "train:", "train:a b", "train:recipe()"])
def test_another_form_is_refused(trained, recipe):
    with loader.Root(trained) as root, refusal(InvalidRuntime, what="--recipe", given=recipe):
        RecipeProcess(root, recipe)


def test_name_of_a_trail_is_never_imported(trained, monkeypatch):
    """A look without --recipe runs nothing of the user's."""
    monkeypatch.delitem(sys.modules, "tests.view.recipes", raising=False)
    with loader.Root(trained) as root:
        training = Training(root, "one")
        replayers = Replayers(plain=Replays(root))
        shown, _ = step_values(training, replayers, 1, 0, 1, show_batch)
        assert step_record(training, shown, None).slots
        assert "tests.view.recipes" not in sys.modules
        replayers.close()
        training.close()


def test_small_operations_of_torch_run_on_one_thread(start_process, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    process, training = start_process("tests.view.recipes:threads")
    values = process.slot(training.setting(1, recipe=True), 1, 0, itself)
    assert values.trained["threads"] == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    process, training = start_process("tests.view.recipes:threads")
    values = process.slot(training.setting(1, recipe=True), 1, 0, itself)
    assert values.trained["threads"] == 2


def test_tensors_leave_the_process_as_arrays(start_process):
    """A viewer that is sent a tensor imports torch, which takes seconds. Numpy has no bfloat16."""
    process, training = start_process("tests.view.recipes:tensors")
    setting = training.setting(2, recipe=True)
    slot = process.slot(setting, 2, 3, slot_itself)
    _, samples = process.part(setting, StepPart(2, 0, 1), batch_and_samples)
    for sample in (slot.trained, samples[3]):
        assert type(sample["jpg"]) is np.ndarray
        np.testing.assert_array_equal(sample["jpg"], slot.decoded["jpg"])
        assert str(sample["brain"].dtype) == "torch.bfloat16"


@pytest.mark.server
def test_arrays_of_jax_leave_the_process_as_arrays(start_process):
    process, training = start_process("tests.view.recipes:jax_arrays")
    setting = training.setting(2, recipe=True)
    slot = process.slot(setting, 2, 3, slot_itself)
    _, samples = process.part(setting, StepPart(2, 0, 1), batch_and_samples)
    for sample in (slot.trained, samples[3]):
        assert [type(value) for value in sample.values()] == [np.ndarray, np.ndarray]
        np.testing.assert_array_equal(sample["jpg"], slot.decoded["jpg"])
        brain = as_array(sample["brain"])
        assert brain is not None
        np.testing.assert_array_equal(brain, sample["jpg"].astype(np.float32))
