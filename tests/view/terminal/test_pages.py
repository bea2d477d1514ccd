"""Pages in a terminal of 80 x 24: each says what its record says, and leads on by the keys of the web."""

import re

import numpy as np
import pytest

import loader
from penstock.view.terminal.addresses import (
    DifferencePage,
    RootPage,
    RunPage,
    SamplePage,
    SlotPage,
    StepPage,
    VersionPage,
)
from penstock.view.terminal.widgets import InputDialog
from tests.view.conftest import BATCH, photo, train, write_photos
from tests.view.recipes import plain

STEP = StepPage(run="one", step=3)
RECIPE = "tests.view.recipes:recipe"


def rank_keys(root, run, step, world_size=1, rank=0):
    """Keys of a rank's part of a step, as `explain` has them."""
    with loader.Root(root) as opened:
        return [
            one.address.key for one in loader.explain(loader.plan_of(opened, run), step, rank, world_size)
        ]


def test_step_shows_proofs_and_every_slot(look, trained) -> None:
    async def test(terminal) -> None:
        assert terminal.lines[0].startswith("one step 3: rank 0 of 1, 6 of 6 slots, digest ")
        assert [line.split()[:2] for line in terminal.lines[2:6]] == [
            [name, "proved"] for name in ("planned", "bytes", "code", "tensors")
        ]
        assert [card.key for card in terminal.app.screen.query("GridCard")] == rank_keys(trained, "one", 3)
        for slot in range(4):
            assert f"{slot} loss {slot}" in terminal.text
        assert "▀" in terminal.text

    look(test, STEP, recipe=RECIPE)


def test_cursor_walks_and_enter_opens_the_slot(look, trained) -> None:
    key = rank_keys(trained, "one", 3)[5]

    async def test(terminal) -> None:
        await terminal.press("down", "right", "enter")
        assert terminal.lines[0].startswith(f"one step 3 slot 5: {key}, photos@1 sample ")
        assert "decoded: image" in terminal.text
        assert "trained: image" in terminal.text
        await terminal.press("left")
        assert "slot 4" in terminal.lines[0]
        await terminal.press("u")
        assert terminal.lines[0].startswith("one step 3:")
        assert terminal.app.focused.number == 4

    look(test, STEP, recipe=RECIPE)


def test_keys_that_come_at_once_are_heard_in_their_order(look) -> None:
    async def test(terminal) -> None:
        for letter in ("right", "right", "enter"):
            terminal.app.simulate_key(letter)
        await terminal.settle()
        await terminal.settle()
        assert terminal.lines[0].startswith("one step 3 slot 2:")

    look(test, STEP, pictures="none")


def test_steps_and_ranks_are_walked(look, trained) -> None:
    async def test(terminal) -> None:
        assert "rank 0 of 3, 2 of 6 slots" in terminal.lines[0]
        await terminal.press("}")
        assert "step 2: rank 1 of 3" in terminal.lines[0]
        assert [card.key for card in terminal.app.screen.query("GridCard")] == rank_keys(
            trained, "three", 2, 3, 1
        )
        await terminal.press("]")
        assert "step 3: rank 1 of 3" in terminal.lines[0]
        await terminal.press("[", "[", "{")
        assert "step 1: rank 0 of 3" in terminal.lines[0]
        await terminal.press("{")
        assert "step 1: rank 0 of 3" in terminal.lines[0]

    look(test, StepPage(run="three", step=2))


def test_one_stage_alone(look) -> None:
    async def test(terminal) -> None:
        await terminal.press("t")
        assert "trained: image" in terminal.text
        assert "decoded: image" not in terminal.text
        await terminal.press("t")
        assert "decoded: image" in terminal.text
        assert "trained: image" not in terminal.text
        await terminal.press("t")
        assert "Stored bytes 1015 B" in terminal.text
        assert "decoded: image" not in terminal.text
        await terminal.press("t")
        assert terminal.lines[-1].strip() == "raw"
        await terminal.press("t")
        assert "decoded: image" in terminal.text
        assert "trained: image" in terminal.text

    look(test, SlotPage(step=STEP, slot=2), recipe=RECIPE)


def test_e_explains_the_slot(look, trained) -> None:
    key = rank_keys(trained, "one", 3)[1]

    async def test(terminal) -> None:
        await terminal.press("right", "e")
        assert f"slot 1: {key}, photos@1 sample" in terminal.text
        assert f"s3://raw/{key.partition('/')[2]}.jpg" in terminal.text
        await terminal.press("escape")
        assert terminal.lines[0].startswith("one step 3 slot 1")

    look(test, STEP)


def test_y_copies_the_command(look, trained) -> None:
    async def test(terminal) -> None:
        await terminal.press("y")
        command = f"penstock batch one@3 --world 1 --rank 0 --recipe {RECIPE} --root {trained}"
        assert terminal.app.clipboard == command
        assert terminal.lines[-1].startswith("penstock batch one@3")

    look(test, STEP, recipe=RECIPE)


def test_g_goes_to_a_step(look) -> None:
    async def test(terminal) -> None:
        await terminal.press("g", "enter")
        await terminal.type("4")
        await terminal.press("enter")
        assert terminal.lines[0].startswith("one step 4:")
        await terminal.press("g", "enter")
        await terminal.type("x")
        await terminal.press("enter")
        assert "a whole number" in terminal.lines[-1]

    look(test, RunPage(run="one"))


def test_first_page_leads_to_runs_and_versions(look, trained) -> None:
    async def test(terminal) -> None:
        assert [one in terminal.text for one in ("one", "three", "floats", "photos@1")] == [True] * 4
        await terminal.press("enter")
        assert terminal.lines[0].startswith("floats: 6 steps recorded, 0 to 5")
        assert "loss             1 to 1.05 " in terminal.text
        await terminal.press("u", "down", "down", "down", "enter")
        assert terminal.lines[0].startswith("photos@1: 14 samples")

    look(
        test, RootPage(), size=(80, 40)
    )  # the cursor in the list scrolls a page that is longer than the screen


def test_run_leads_to_its_unusual_samples(look) -> None:
    async def test(terminal) -> None:
        assert "step 0 slot 5  loss 5" in terminal.text
        await terminal.press("down", "enter")
        assert terminal.lines[0].startswith("one step 1 slot 5: ")

    look(test, RunPage(run="one"), pictures="none", size=(80, 40))


def test_version_is_filtered_and_its_sample_opened(look, trained) -> None:
    async def test(terminal) -> None:
        await terminal.press("/")
        await terminal.type("width = 41")
        await terminal.press("enter", "enter", "enter", "enter")
        assert "2 found, 1 to 2 shown; where width = 41" in terminal.lines[1]
        (first, _) = [card.key for card in terminal.app.screen.query("GridCard")]
        await terminal.press("enter")
        assert terminal.lines[0].rstrip().endswith(f": {first}")
        assert "41 x 32 px, RGB" in terminal.text
        await terminal.press("u")
        assert "where width = 41" in terminal.lines[1]
        await terminal.press("/")
        await terminal.type(" nonsense (")
        await terminal.press("enter", "enter", "enter", "enter")
        assert "14 found, 1 to 14 shown; where nonsense (" in terminal.lines[1]
        assert "where 'nonsense (' is refused" in terminal.text
        await terminal.press("/")
        assert terminal.app.screen.query("Input").first().value == "nonsense ("

    look(test, VersionPage(dataset="photos", number=1))


def test_error_stands_in_the_place_of_its_page(look) -> None:
    async def test(terminal) -> None:
        assert "no-such-run" in terminal.text
        await terminal.press("u", "u")
        assert "photos@1" in terminal.text

    look(test, StepPage(run="no-such-run", step=0))


def test_samples_are_excluded_by_keyboard(look, root, plan, tmp_path) -> None:
    train(root, plan, "one", steps=2)
    keys = rank_keys(tmp_path / "root", "one", 1)[:2]

    async def test(terminal) -> None:
        await terminal.press("x")
        assert "the basket is empty" in terminal.lines[-1]
        await terminal.press("b", "right", "b", "right", "b", "b")
        assert terminal.lines[-1].startswith("basket: 2 (- ")
        await terminal.press("x")
        assert "Exclude 2 samples" in terminal.text
        await terminal.type("blurred")
        await terminal.press("enter")
        await terminal.type("ada")
        await terminal.press("enter")
        assert "excluded; new: photos@2" in terminal.lines[-1]
        assert not terminal.app.basket

    look(test, StepPage(run="one", step=1), root=tmp_path / "root")
    left = loader.Root(tmp_path / "root").open("photos@2")
    assert set(left.samples().collect()["key"]).isdisjoint(keys)
    assert len(left) == 12

    async def difference(terminal) -> None:
        assert "2 samples only in photos@1" in terminal.text
        assert all(key in terminal.text for key in keys)

    look(difference, DifferencePage(dataset="photos", number=1, other=2), root=tmp_path / "root")


BURSTS = {
    "tab": [*"blurred", "tab", *"ada", "enter"],
    "enter": [*"blurred", "enter", *"ada", "enter"],
    "back": ["tab", *"ada", "shift+tab", *"blurred", "enter", "enter"],
    "long": [*"blurred " * 50, "tab", *"ada " * 50, "enter"],
}


@pytest.mark.parametrize("burst", BURSTS)
def test_letters_of_one_burst_go_into_their_line(look, burst) -> None:
    given = []

    async def test(terminal) -> None:
        terminal.app.push_screen(InputDialog("Exclude 1 sample", {"reason": "", "by": ""}), given.append)
        await terminal.settle()
        for key in BURSTS[burst]:
            terminal.app.simulate_key(key)
        await terminal.settle()
        await terminal.settle()

    look(test, RootPage())
    wanted = (
        {"reason": "blurred " * 50, "by": "ada " * 50}
        if burst == "long"
        else {"reason": "blurred", "by": "ada"}
    )
    assert given == [wanted]


def test_escape_leaves_a_dialog_without_an_answer(look) -> None:
    given = []

    async def test(terminal) -> None:
        terminal.app.push_screen(InputDialog("Exclude 1 sample", {"reason": ""}), given.append)
        await terminal.press("a", "escape")
        assert "penstock" in terminal.lines[0]

    look(test, RootPage())
    assert given == [None]


def test_exclusion_without_a_reason_is_refused(look, root, plan, tmp_path) -> None:
    train(root, plan, "one", steps=1)

    async def test(terminal) -> None:
        await terminal.press("b", "x", "enter")
        await terminal.type("ada")
        await terminal.press("enter")
        assert terminal.lines[-1].startswith("InvalidRuntime: an exclusion needs a reason")
        assert len(terminal.app.basket) == 1

    look(test, StepPage(run="one", step=0), root=tmp_path / "root")
    assert loader.Root(tmp_path / "root").open("photos@latest").name == "photos@1"


def test_frames_are_walked(look, root, tmp_path) -> None:
    clip = np.stack([np.full((16, 16, 3), level, np.uint8) for level in (10, 120, 240)])
    with root.write("clips") as writer:
        for i in range(4):
            writer.add(
                f"c/{i}", {"clip.npy": clip, "caption.txt": "[bold]x[/] a\x1b[31mred\u202e <b>cap</b>tion"}
            )
    made = loader.plan(
        {"clips": root.open("clips@1").select("clip.npy", "caption.txt")}, seed=3, global_batch=2
    )
    train(root, made, "clips", recipe=plain, steps=1)

    async def test(terminal) -> None:
        assert r"[bold]x[/] a\x1b[31mred\u202e <b>cap</b>tion" in terminal.text.replace("\n", "")
        await terminal.press("t")
        for key, frame, letter in ((".", 0, " "), (".", 1, "▒"), (".", 2, "█"), (".", 2, "█"), (",", 1, "▒")):
            await terminal.press(key)
            assert terminal.lines[-1].startswith(f"frame {frame} of 3")
            row = next(i for i, line in enumerate(terminal.lines) if "trained: video" in line)
            assert terminal.lines[row + 3][:20] == letter * 20

    step = StepPage(run="clips", step=0)
    look(
        test,
        SlotPage(step=step, slot=0),
        root=tmp_path / "root",
        recipe=None,
        pictures="shades",
        size=(100, 40),
    )


@pytest.mark.parametrize("pictures", ["none", "shades"])
def test_batch_is_read_without_colours(look, monkeypatch, pictures) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def test(terminal) -> None:
        assert terminal.app.pictures == pictures
        assert "proved" in terminal.text
        assert ("▒" in terminal.text) is (pictures == "shades")
        strips = terminal.app.screen._compositor.render_strips()
        colours = {
            one.style.color.triplet for strip in strips for one in strip if one.style and one.style.color
        }
        assert all(red == green == blue for red, green, blue in colours)

    look(test, STEP, pictures="auto" if pictures == "shades" else "none")


def test_steps_are_looked_at_together(look) -> None:
    async def test(terminal) -> None:
        await terminal.press("w")
        await terminal.type("1")
        await terminal.press("enter")
        await terminal.type("4")
        await terminal.press("enter")
        assert "one steps 1 to 4" in terminal.lines[0]
        assert "24 slots, 14 different samples" in terminal.text
        assert "slots by the weights" in terminal.text
        assert "24.0" in terminal.text
        await terminal.press("y")
        assert "penstock trail window one --from 1 --to 4" in terminal.lines[-1]

    look(test, RunPage(run="one"))


def test_run_is_held_against_another(look, root, plan, tmp_path) -> None:
    train(root, plan, "one")
    train(root, loader.plan({"photos": plan.sources["photos"].view}, seed=4, global_batch=BATCH), "seeded")

    async def test(terminal) -> None:
        await terminal.press("a")
        await terminal.type("seeded")
        await terminal.press("enter")
        assert "one against seeded" in terminal.lines[0]
        assert "step 0, rank 0 of 1, is the first that differs" in terminal.text
        await terminal.press("down", "enter")
        assert "seeded step 0: rank 0 of 1" in terminal.lines[0]

    look(test, RunPage(run="one"), root=tmp_path / "root")


def test_every_page_is_80_columns_wide(look) -> None:
    async def test(terminal) -> None:
        for keys in ("?", "escape", "enter", "e", "escape", "u", "u", "u"):
            await terminal.press(keys)
            assert [len(line) for line in terminal.lines] == [80] * 24

    look(test, STEP)


def test_batches_of_any_size_are_paged(look, root, tmp_path) -> None:
    made = loader.plan(
        {"photos": write_photos(root, numbers=range(60)).select("jpg", "cls")}, seed=3, global_batch=30
    )
    train(root, made, "wide", steps=1)
    keys = rank_keys(tmp_path / "root", "wide", 0)
    assert len(keys) == 30 > BATCH

    async def test(terminal) -> None:
        assert [card.key for card in terminal.app.screen.query("GridCard")] == keys[:24]
        await terminal.press(*["down"] * 5, *["right"] * 4)
        assert [card.key for card in terminal.app.screen.query("GridCard")] == keys[24:]
        assert terminal.app.focused.number == 24
        await terminal.press("left")
        assert terminal.app.focused.number == 23
        assert [card.key for card in terminal.app.screen.query("GridCard")] == keys[:24]

    look(test, StepPage(run="wide", step=0), root=tmp_path / "root", pictures="none")


def test_slot_and_its_sample_tell_edits_and_lead_to_a_sample_that_looks_alike(look, root, tmp_path) -> None:
    with root.write("near") as writer:
        for i, phash in enumerate(("00", "ff", "01")):
            writer.add(f"k{i}", {"x.txt": f"text {i}"}, metadata={"phash": phash * 8})
    root.annotate("near@1", "review", {"k0": {"label": "cat"}}, author="ann")
    plan = loader.plan({"near": root.open("near@2").select("x.txt")}, seed=3, global_batch=3)
    train(root, plan, "near", recipe=plain, steps=1)
    slot = [key for _, key in plan.batch_ids(0)].index("k0")

    edit = re.compile(r"label +cat +review +ann +20")

    async def test(terminal) -> None:
        assert edit.search(terminal.text)
        await terminal.press("tab", "enter")
        assert terminal.lines[0].rstrip().endswith(" of 3: k0")
        assert edit.search(terminal.text)
        await terminal.press("tab", "tab", "enter")
        assert terminal.lines[0].rstrip().endswith(" of 3: k2")
        assert not edit.search(terminal.text)
        await terminal.press("tab", "tab", "enter")
        assert terminal.lines[0].rstrip().endswith(" of 3: k0")

    look(test, SlotPage(step=StepPage(run="near", step=0), slot=slot), root=tmp_path / "root", size=(80, 40))


def test_raw_objects_are_shown_where_they_may_be_fetched(look, root, tmp_path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "1.jpg").write_bytes(photo(1))
    (landing / "2.txt").write_text("a raw [bold]text[/]")
    with root.write("d") as writer:
        for i, name in enumerate(("1.jpg", "2.txt", "3.jpg")):
            writer.add(f"k{i}", {"cls": i}, source={"raw_uri": f"{landing}/{name}"})
    plan = loader.plan({"d": root.open("d@1").select()}, seed=1, global_batch=3)
    train(root, plan, "one", recipe=plain, steps=1)
    slots = {key: slot for slot, (_, key) in enumerate(plan.batch_ids(0))}
    at = {key: ordinal for ordinal, key in enumerate(root.open("d@1").keys(range(3)))}
    step, version = StepPage(run="one", step=0), VersionPage(dataset="d", number=1)

    def pages(i):
        return SlotPage(step=step, slot=slots[f"k{i}"]), SamplePage(version=version, ordinal=at[f"k{i}"])

    async def picture(terminal) -> None:
        assert "1.jpg" in terminal.text
        assert "41 x 32 px, RGB" in terminal.text
        assert "▀" * 12 in terminal.text

    async def text(terminal) -> None:
        assert "a raw [bold]text[/]" in terminal.text

    async def check_missing(terminal) -> None:
        assert "3.jpg" in terminal.text
        assert "there is no such object" in terminal.text

    async def stages(terminal) -> None:
        for shown in (0, 0, 0, 1, 1):
            await terminal.press("t")
            assert terminal.text.count("a raw [bold]text[/]") == shown
        assert terminal.lines[-1].startswith("all stages")

    async def check_hidden(terminal) -> None:
        assert "2.txt" in terminal.text
        assert "a raw" not in terminal.text

    # Wide enough for the path of any temporary folder.
    for i, test in enumerate((picture, text, check_missing)):
        for place in pages(i):
            look(test, place, root=tmp_path / "root", raw=landing, size=(200, 70))
    look(stages, pages(1)[0], root=tmp_path / "root", raw=landing, size=(200, 70))
    look(check_hidden, pages(1)[0], root=tmp_path / "root", size=(200, 70))


def test_sample_leads_to_the_steps_that_held_it(look, root, plan, tmp_path):
    train(root, plan, "one", recipe=plain, steps=3)
    version = root.open("photos@1")
    ordinal = version.keys(np.arange(14)).index("p/3")
    step, slot, *_ = plan.steps_of("photos", "p/3", before=3)[0]
    place = SamplePage(version=VersionPage(dataset="photos", number=1), ordinal=ordinal)

    async def test(terminal) -> None:
        assert "1 other run was not searched" in terminal.text
        terminal.app.data.training("one")
        await terminal.press("right", "left")
        assert "one step" in terminal.text
        await terminal.press("tab", "tab", "down", "enter")
        assert terminal.lines[0].startswith(f"one step {step} slot {slot}: p/3")
        assert "one step" in terminal.text

    look(test, place, root=tmp_path / "root", size=(100, 60))
