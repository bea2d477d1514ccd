"""The blocks of docs/cookbook.md, in their order, twice over."""

import difflib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import loader
from penstock.cli import main
from tests.assets.featurizers.texts.conftest import write_tokenizer
from tests.servers.patience import PATIENCE_S
from tests.servers.processes import python

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "cookbook.md").read_text()
BLOCKS = dict(re.findall(r"```python (\w+)\n(.*?)```", PAGE, re.S))
COMMANDS = dict(re.findall(r"```sh (\w+)\n(.*?)```", PAGE, re.S))
WITH_LIBRARIES = ("torchvision", "hf")
POST_TRAINING = ("sft", "dpo", "grpo", "evaluation", "images")
IN_ONE_PROCESS = ("splits", "validate", "captions", "video", "language", "exam", *POST_TRAINING)
AUGMENT = """
import loader, sys

def augment(image):  # in the place of torchvision's: it draws from torch's global generator as they do
    image = image.float() * (1 + torch.rand(3, 1, 1))
    return image.flip(-1) if torch.rand(()) < 0.5 else image

if __name__ == "__main__":
    faces = loader.Root("cookbook-root").open("faces@1")
    plan = loader.plan({"faces": faces}, seed=7, global_batch=16)
    for workers in (0, 4):
        with loader.Loader(plan, 0, 1, transform=Seeded("x.npy", augment), steps=6, workers=workers) as batches:
            print([float(batch["x.npy"].double().sum()) for batch in batches])
"""


ONE_STEP = """
import os

def train(images, labels):  # the page's loop has no end
    print(*images.shape, *labels.shape, flush=True)
    os._exit(0)

"""


def run(code: str, place: Path, standard_input: str | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = python("-W", "error", "-c", code, cwd=place, env=environment, input=standard_input)
    assert done.returncode == 0, done.stderr
    return done.stdout


# One process for all: importing torch takes 2 s of the processor.
RECIPES = """
import contextlib, io, json, sys
blocks = json.load(sys.stdin)
printed = {}
for name, code in blocks * 2:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    printed.setdefault(name, []).append(text.getvalue())
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a stock chat template in `model`, and the page's module `tiny.py`."""
    place = tmp_path_factory.mktemp("cookbook")
    folder = place / "model"
    folder.mkdir()
    write_tokenizer(folder)
    (place / "tiny.py").write_text(BLOCKS["tiny"])
    return place


@pytest.fixture(scope="module")
def recipe_output(place: Path) -> dict[str, list[str]]:
    """Recipe -> what it prints, in two runs."""
    blocks = [(name, BLOCKS[name]) for name in IN_ONE_PROCESS]
    texts: dict[str, list[str]] = json.loads(run(RECIPES, place, json.dumps(blocks)))
    return texts


def test_splits_hold_people_together_and_run_twice(recipe_output: dict[str, list[str]]) -> None:
    _, said = recipe_output["splits"]
    n_all, n_val = map(int, re.findall(r"\d+", said.splitlines()[0]))
    assert n_all == 200
    assert 0 < n_val < 60
    assert n_val % 4 == 0  # a person is on one side
    assert "split" in said


def test_seeded_transform_gives_the_same_batches_for_any_number_of_threads(
    recipe_output: dict[str, list[str]], place: Path
) -> None:
    assert recipe_output["splits"]
    one, four = run(BLOCKS["seeded"] + AUGMENT, place).splitlines()
    assert one == four
    assert len(set(json.loads(one))) == 6


def test_validation_reads_each_sample_once_and_runs_twice(recipe_output: dict[str, list[str]]) -> None:
    assert recipe_output["validate"] == ["True\n"] * 2


def test_random_crops_repeat_with_tokens_of_their_captions_and_run_twice(
    recipe_output: dict[str, list[str]],
) -> None:
    assert recipe_output["captions"] == ["(8, 32, 32, 3) (8, 16) 8 True\n"] * 2


def test_dataset_of_torch_is_read_as_it_is_and_runs_twice(tmp_path: Path) -> None:
    assert [run(BLOCKS["dataset"], tmp_path) for _ in range(2)] == ["(16, 3, 8, 8) 12 False\n"] * 2


def test_video_runs_twice(recipe_output: dict[str, list[str]]) -> None:
    assert recipe_output["video"] == ["(4, 8, 32, 32, 3)\n"] * 2


def test_documents_are_packed_and_run_twice(recipe_output: dict[str, list[str]]) -> None:
    first, second = recipe_output["language"]
    assert first == second
    assert first.startswith("(8, 512) ")


def test_sequences_are_stored_once_and_read(
    recipe_output: dict[str, list[str]],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert recipe_output["language"]
    monkeypatch.chdir(place)
    for _ in range(2):
        words = COMMANDS["pack"].split()
        assert main(words[1:]) == 0
        exec(compile(BLOCKS["stored"], "stored", "exec"), {"__name__": "__main__"})
        assert "\n(8, 512) " in capsys.readouterr().out


def test_page_with_a_question_is_named(
    recipe_output: dict[str, list[str]],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert recipe_output["exam"] == ["2\n"] * 2
    monkeypatch.chdir(place)
    words = COMMANDS["overlap"].split()
    assert main(words[1:]) == 1
    row = capsys.readouterr().out.splitlines()[0].strip()
    assert f"It prints `{row}`, and exits with 1." in PAGE


def first_and_last_loss(texts: list[str]) -> tuple[float, float]:
    first, again = texts
    assert first == again
    first_loss, last_loss = first.split()
    return float(first_loss), float(last_loss)


def test_sft_learns_the_assistants_tokens_and_repeats(
    recipe_output: dict[str, list[str]], place: Path
) -> None:
    from tokenizers import Tokenizer

    first_loss, last_loss = first_and_last_loss(recipe_output["sft"])
    assert first_loss > 5
    assert last_loss < 0.01
    chats = loader.Root(place / "cookbook-root").open("chats@1")
    assert len(chats) == 64
    tokenizer = Tokenizer.from_file(str(place / "model" / "tokenizer.json"))
    for chat in chats[:8]:
        trained = chat["tokens.npy"][chat["mask.npy"]].tolist()
        assert tokenizer.decode(trained, skip_special_tokens=False) == "pong<|im_end|>"


def test_dpo_begins_at_the_reference_and_learns_and_repeats(recipe_output: dict[str, list[str]]) -> None:
    first_loss, last_loss = first_and_last_loss(recipe_output["dpo"])
    assert first_loss == 0.693  # ln 2: the model is the reference
    assert last_loss < 0.1


def test_grpo_learns_and_repeats(recipe_output: dict[str, list[str]], place: Path) -> None:
    assert recipe_output["grpo"] == ["", ""]
    rollouts = loader.Root(place / "cookbook-root").open("sums@latest")
    assert rollouts.number == 30  # the second run publishes the same rollouts
    rewards = rollouts.samples().select("policy_min", "reward").collect()
    by_step = dict(rewards.group_by("policy_min").mean().rows())
    assert by_step[0] < 0.3
    assert by_step[29] > 0.9


def test_evaluation_compares_checkpoints_and_repeats(recipe_output: dict[str, list[str]]) -> None:
    assert recipe_output["evaluation"] == ["[('before', 0.0), ('sft', 1.0)]\n"] * 2


@pytest.mark.parametrize("name", POST_TRAINING)
def test_recipe_of_post_training_has_ten_lines(name: str) -> None:
    lines = [line for line in BLOCKS[name].splitlines() if line]
    own = [line for line in lines if not line.startswith(("import ", "from "))]
    assert len(own) <= 10


def test_rollouts_with_images_are_trained_on_and_repeat(recipe_output: dict[str, list[str]]) -> None:
    _, last_loss = first_and_last_loss(recipe_output["images"])
    assert last_loss < 0.7  # the answer depends on the image only: from tokens the loss stays at ln 4


def write_photos(folder: Path) -> None:
    """Write eight photos of each of three colours, a folder per colour."""
    for colour in ("red", "green", "blue"):
        (folder / colour).mkdir(parents=True)
        for n in range(8):
            shape = (40 + 4 * n, 60)
            Image.new("RGB", shape, colour).save(folder / colour / f"{n}.jpg")


def shell(commands: str, place: Path) -> str:
    """Return what the commands print. They run in the folder, with this interpreter's scripts first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    unset = {"RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PENSTOCK_ROOT"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-ec", commands],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_resnet_trains_from_jpegs_on_two_ranks_and_resumes_on_one(
    tmp_path: Path, shared: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    write_photos(tmp_path / "jpegs")
    shell(COMMANDS["jpegs"], tmp_path)
    script = tmp_path / "resnet.py"
    script.write_text(BLOCKS["resnet"])
    scripts, digests = shared("run/scripts"), dict[int, int]()
    with scripts.script_runner(
        shared("dataset/forks"), "torch", "torch._dynamo", "penstock.checkpoints"
    ) as do:
        for world_size, steps in ((2, range(4)), (1, range(4, 6))):
            done = do(script, steps.stop, folder=tmp_path, world_size=world_size)
            assert done.codes == [0] * world_size, done.errors
            assert [step for step, _ in done.took] == [*steps]
            digests |= dict(done.took)

    photos = loader.Root(tmp_path / "jpeg-root").open("photos@1")
    classes = photos.classes("label")
    assert classes == ("blue", "green", "red")
    view = photos.select("jpg", columns={"label": classes}).where("label IS NOT NULL")
    plan = loader.plan({"photos": view}, seed=7, global_batch=8)
    with loader.Loader(plan, 0, 1, steps=6) as batches:
        for batch in batches:
            assert digests[batch.step] == batch.digest
            for slot, label in zip(batch.ids, batch["label"].tolist(), strict=True):
                assert slot is not None
                assert slot[1].startswith(f"{classes[label]}/")


def test_front_page_trains_on_labelled_photos(tmp_path: Path) -> None:
    page = (ROOT / "docs/index.md").read_text()
    (start,) = re.findall(r"```sh start\n(.*?)```", page, re.S)
    (loop,) = re.findall(r"```python loop\n(.*?)```", page, re.S)
    write_photos(tmp_path / "photos")
    install, command = start.splitlines()
    assert install.startswith("pip install -e ")
    shell(command, tmp_path)
    small = loop.replace("global_batch=256", "global_batch=24")
    assert run(ONE_STEP + small, tmp_path) == "24 224 224 3 24\n"


def test_page_counts_the_changed_lines_of_a_moved_training() -> None:
    folder = ROOT / "tests/oracles/classify"
    before = (folder / "before.py").read_text().splitlines()
    after = (folder / "after.py").read_text().splitlines()
    changes = [line[0] for line in difflib.ndiff(before, after)]
    text = f"{changes.count('-')} of its {len(before)} lines became {changes.count('+')}."
    assert text in PAGE


def test_every_block_is_tried() -> None:
    tried = {"resnet", "dataset", "seeded", "tiny", "stored"}
    assert set(COMMANDS) == {"jpegs", "pack", "overlap"}
    assert set(BLOCKS) == {*tried, *IN_ONE_PROCESS, *WITH_LIBRARIES}
    assert "from seeded import Seeded\n" in BLOCKS["torchvision"]  # each block is a script of its own


@pytest.mark.parametrize("name", WITH_LIBRARIES)
def test_blocks_with_libraries_of_others_compile(name: str) -> None:
    """The project does not depend on these libraries: tests/oracles/test_items_oracle.py runs the blocks."""
    compile(BLOCKS[name], name, "exec")
