"""Proofs that a step shown is the step that was trained on, and pictures that are the tensors."""

import io
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import loader
from loader.errors import InvalidRuntime
from penstock.cli import main
from penstock.view.inspect.run_comparison import run_comparison
from penstock.view.inspect.shown_batch import show_batch
from penstock.view.inspect.slot_record import slot_record, slot_values
from penstock.view.inspect.step_range import step_range
from penstock.view.inspect.step_record import default_part, step_record, step_values
from penstock.view.kinds import find_kind
from penstock.view.replays.replayed_values import itself
from penstock.view.replays.replays import Replayers, Replays
from penstock.view.replays.training import Training, resolve_run_step
from penstock.view.shown_values import field_facts
from tests.refusals import refusal
from tests.view import recipes
from tests.view.batch_values import whole_values
from tests.view.conftest import BATCH, STEPS, train, write_photos


class Viewed:
    """A training seen with its recipe."""

    def __init__(self, root, run, recipe=recipes.recipe):
        self.training = Training(root, run)
        own = None if recipe is None else Replays(root, recipe())
        self.replayers = Replayers(plain=Replays(root), recipe=own)

    def step(self, step, rank, world_size):
        """The values of a part, and its record. Made slot by slot, it is the one that its whole batch gives."""
        part = self.training, self.replayers, step, rank, world_size
        values = whole_values(*part)
        setting = self.training.setting(step, recipe=True)
        own = self.replayers.recipe
        shown, trouble = step_values(*part, show_batch)
        assert trouble == ""
        assert step_facts(shown) == step_facts(show_batch(self.training.plan(step), values))
        return values, step_record(self.training, shown, own and own.functions(setting), trouble)

    def slot(self, step, slot):
        values, trouble = slot_values(self.training, self.replayers, step, slot, itself)
        setting = self.training.setting(step, recipe=True)
        own = self.replayers.recipe
        record = slot_record(
            self.training,
            values,
            trouble,
            functions=own and own.functions(setting),
            part=lambda *part: step_values(self.training, self.replayers, step, *part, show_batch),
        )
        return values, record

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.replayers.close()
        self.training.close()


def step_facts(shown):
    slots = [(one.fields, one.thumbnails, one.hashes) for one in shown.slots]
    return slots, shown.digest, shown.crc32c, shown.errors, shown.settled, shown.n_pictured


def proved(record):
    return {one.name: one.proved for one in record.proofs}


def text_of(record, name):
    return next(one.text for one in record.proofs if one.name == name)


ALL = {"planned": True, "bytes": True, "code": True, "tensors": True}


@pytest.mark.parametrize(("run", "world_size"), [("one", 1), ("three", 3)])
def test_every_step_and_rank_is_proved_to_the_tensors(trained, run, world_size):
    with loader.Root(trained) as root, Viewed(root, run) as viewed:
        recorded = {
            (row["step"], row["rank"]): row["digest"] for row in viewed.training.trail.steps.to_dicts()
        }
        assert len(recorded) == STEPS * world_size
        for (step, rank), digest in recorded.items():
            values, record = viewed.step(step, rank, world_size)
            assert record.digest == values.digest == digest
            assert proved(record) == ALL
            assert default_part(viewed.training, step) == (0, world_size)


@pytest.mark.parametrize("world_size", [1, 5])
def test_other_world_sizes_prove_the_bytes_by_the_sum_of_the_ranks(trained, world_size):
    with loader.Root(trained) as root, Viewed(root, "three") as viewed:
        for step in range(STEPS):
            found = [viewed.step(step, rank, world_size)[1] for rank in range(world_size)]
            whole = sum(row["digest"] for row in viewed.training.rows(step)) % 2**64
            assert sum(one.digest for one in found) % 2**64 == whole
            for one in found:
                assert proved(one) == ALL | {"tensors": None}
                assert "rank 0 of 3" in text_of(one, "tensors")


def test_picture_has_the_pixels_of_the_tensor(trained):
    with loader.Root(trained) as root, Viewed(root, "one") as viewed:
        for step in range(STEPS):
            values, record = viewed.step(step, 0, 1)
            with loader.Replay(viewed.training.plan(step), framework="numpy", **recipes.recipe()) as replay:
                batch = replay.batch(step)
            for row in record.slots:
                value = values.slots[row.slot]["jpg"]
                np.testing.assert_array_equal(value, batch["jpg"][row.slot])
                facts = field_facts(values.slots[row.slot], "jpg", None)
                (media,) = find_kind(value, facts).detail(value, facts)
                drawn = np.asarray(Image.open(io.BytesIO(media.data)).convert("RGB"))
                np.testing.assert_array_equal(drawn, value.transpose(1, 2, 0))


def test_slot_is_the_one_of_its_batch(trained):
    with loader.Root(trained) as root, Viewed(root, "floats", recipes.floats) as viewed:
        batch, step = viewed.step(2, 0, 1)
        for row in step.slots:
            values, record = viewed.slot(2, row.slot)
            np.testing.assert_array_equal(values.trained["jpg"], batch.slots[row.slot]["jpg"])
            assert (record.key, record.version, record.ordinal) == (row.key, row.version, row.ordinal)
            assert record.repeats
            assert record.provenance["raw_uri"] == row.raw == f"s3://raw/{row.key[2:]}.jpg"
            (jpg,) = [one for one in record.fields if one.field == "jpg"]
            assert (2, row.slot) in [(one.step, one.slot) for one in record.trainings[0].slots]
            decoded = values.decoded["jpg"]
            back = jpg.placement.original_colours(values.trained["jpg"].transpose(1, 2, 0))
            xs, ys = zip(*jpg.placement.corners, strict=True)
            left, top = round(min(xs)), round(min(ys))
            square = decoded[top : top + 24, left : left + 24]
            assert jpg.placement.mirrored == (jpg.placement.corners[0][0] > jpg.placement.corners[1][0])
            np.testing.assert_array_equal(back, square[:, ::-1] if jpg.placement.mirrored else square)


def test_without_the_recipe_values_are_decoded_and_the_proofs_say_so(trained):
    with loader.Root(trained) as root, Viewed(root, "one", None) as viewed:
        values, record = viewed.step(1, 0, 1)
        assert proved(record) == {"planned": True, "bytes": True, "code": None, "tensors": None}
        assert "--recipe tests.view.recipes:recipe" in text_of(record, "code")
        assert values.slots[0]["jpg"].shape[2] == 3


def test_another_transform_is_told(trained):
    with loader.Root(trained) as root, Viewed(root, "one", recipes.floats) as viewed:
        _, record = viewed.step(1, 0, 1)
        assert proved(record) == ALL | {"code": False, "tensors": False}
        assert "normalise" in text_of(record, "code")
        assert "jpg" in text_of(record, "tensors")


@pytest.mark.parametrize("world_size", [1, 2])
def test_step_with_another_digest_is_told(trained, tmp_path, world_size):
    shutil.copytree(trained, tmp_path / "root")
    (rows,) = (tmp_path / "root/trails/one/0-of-1").glob("*.parquet")
    table = pq.read_table(rows)
    digests = [one.as_py() ^ (step == 2) for step, one in enumerate(table["digest"])]
    at = table.column_names.index("digest")
    pq.write_table(table.set_column(at, "digest", pa.array(digests, pa.uint64())), rows)
    with loader.Root(tmp_path / "root") as root, Viewed(root, "one") as viewed:
        found = [proved(viewed.step(step, 0, world_size)[1])["bytes"] for step in range(STEPS)]
    assert found == [True, True, False, True, True, True]


def test_training_without_a_transform_is_proved_without_a_recipe(root, plan):
    train(root, plan, "plain", recipe=recipes.plain)
    with Viewed(root, "plain", None) as viewed:
        assert proved(viewed.step(3, 0, 1)[1]) == ALL


def test_sample_that_was_bad_and_is_repaired_keeps_its_substitute(tmp_path):
    """What was written by a store that flips bytes is looked at through one that does not."""
    with loader.Root(tmp_path / "root") as root:
        version = write_photos(root)
        shard = next(iter(version.address(np.array([2]), ["jpg"]))).fields["jpg"]
        path = tmp_path / "root" / shard.path
        good = path.read_bytes()
        bad = bytearray(good)
        bad[shard.offset + 9] ^= 1
        path.write_bytes(bad)
    with loader.Root(tmp_path / "root") as root:
        plan = loader.plan({"photos": root.open("photos@1").select("jpg", "cls")}, seed=3, global_batch=BATCH)
        train(root, plan, "bad")
        assert loader.read_ledger(root, plan)
    path.write_bytes(good)
    with loader.Root(tmp_path / "root") as root, Viewed(root, "bad") as viewed:
        records = [viewed.step(step, 0, 1)[1] for step in range(STEPS)]
        assert [proved(one) for one in records] == [ALL] * STEPS
        assert any(slot.attempt for one in records for slot in one.slots)


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """A root with runs of one plan: of sound bytes, with a sick sample, with two, of repaired bytes.

    The run `again` did its steps twice.
    """
    folder = tmp_path_factory.mktemp("histories") / "root"
    with loader.Root(folder) as root:
        version = write_photos(root)
        places = [one.fields["jpg"] for one in version.address(np.array([2, 9]), ["jpg"])]
        plan = loader.plan({"photos": version.select("jpg", "cls")}, seed=3, global_batch=BATCH)
    good = {one.path: (folder / one.path).read_bytes() for one in places}
    for sick, runs in (
        ([], {"sound": 1}),
        (places[:1], {"sick": 3, "again": 2}),
        (places, {"worse": 1}),
        ([], {"repaired": 2, "again": 1}),
    ):
        bad = {path: bytearray(data) for path, data in good.items()}
        for one in sick:
            bad[one.path][one.offset + 9] ^= 1
        for path, data in bad.items():
            (folder / path).write_bytes(data)
        with loader.Root(folder) as root:
            plan = loader.plan(
                {"photos": root.open("photos@1").select("jpg", "cls")}, seed=3, global_batch=BATCH
            )
            for run, world_size in runs.items():
                train(root, plan, run, world_size=world_size)
    return folder


RUNS = ("sound", "sick", "worse", "repaired", "again")
SIZE_IN_CI = {("sound", 3), ("sick", 1), ("worse", 2), ("repaired", 1), ("again", 1), ("again", 2)}


@pytest.mark.parametrize(
    ("run", "world_size"),
    [
        pytest.param(run, size, marks=() if (run, size) in SIZE_IN_CI else pytest.mark.nightly)
        for run in RUNS
        for size in (1, 2, 3)
    ],
)
def test_each_run_of_a_plan_is_proved_with_the_substitutes_that_it_had(histories, run, world_size, at_scale):
    # A slot by itself has no world size: of `again` it is that of the last try, which one rank made.
    looks_at_slots = at_scale(world_size == 1, (run, world_size) != ("again", 2))
    with loader.Root(histories) as root, Viewed(root, run) as viewed:
        attempts = set()
        for step in range(STEPS):
            records = [viewed.step(step, rank, world_size)[1] for rank in range(world_size)]
            assert [text_of(one, "bytes") for one in records if proved(one)["bytes"] is not True] == []
            tensors = {proved(one)["tensors"] for one in records}
            assert False not in tensors
            slots = [row for one in records for row in one.slots]
            if looks_at_slots:
                keys = [viewed.slot(step, row.slot)[1].key for row in slots]
                assert keys == [row.key for row in slots]
            attempts |= {row.attempt for row in slots}
        # `again` had a substitute at its first try, of two ranks, and none at its last, of one.
        had = run in ("sick", "worse") or (run == "again" and world_size == 2)
        assert (attempts > {0}) == had


def test_verbs_and_windows_know_a_runs_own_substitutes(histories, capsys):
    for run in RUNS:
        assert main(["trail", "verify", run, "--root", str(histories)]) == 0, capsys.readouterr().out
    with loader.Root(histories) as root:
        trails = [loader.read_trail(root, run) for run in RUNS]
        assert not run_comparison(root, trails[0], trails[3]).slots
        differing = run_comparison(root, trails[1], trails[2])
        assert differing.slots
        assert not differing.problem
        told = {}
        for run in RUNS:
            training = Training(root, run)
            told[run] = step_range(training, 0, STEPS - 1).n_substituted
            training.close()
    assert told["sound"] == told["repaired"] == told["again"] == 0 < told["sick"] < told["worse"]


def test_sample_that_rotted_since_is_named_in_its_slot(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        version = write_photos(root)
        plan = loader.plan({"photos": version.select("jpg", "cls")}, seed=3, global_batch=BATCH)
        train(root, plan, "rotted")
        shard = next(iter(version.address(np.array([2]), ["jpg"]))).fields["jpg"]
        key = version.keys(np.array([2]))[0]
    path = tmp_path / "root" / shard.path
    bad = bytearray(path.read_bytes())
    bad[shard.offset + 9] ^= 1
    path.write_bytes(bad)
    with loader.Root(tmp_path / "root") as root, Viewed(root, "rotted") as viewed:
        found = [viewed.step(step, 0, 1)[1] for step in range(STEPS)]
        held = [(one, slot) for one in found for slot in one.slots if slot.key == key]
        assert held
        for record, slot in held:
            assert "after reading it twice" in slot.error
            assert proved(record)["bytes"] is False
            assert text_of(record, "bytes") == f"unreadable samples: slots {slot.slot}"
            assert record.marks[0].name == "unreadable"
            assert record.marks[0].slots == (slot.slot,)
            assert len(record.slots) == BATCH
        others = [one for one in found if all(slot.key != key for slot in one.slots)]
        assert all(proved(one) == ALL for one in others)


def test_steps_of_a_retired_version_are_proved(root, plan):
    train(root, plan, "old")
    write_photos(root, numbers=range(20, 24))
    root.retire("photos@1", reason="too small")
    with Viewed(root, "old") as viewed:
        assert proved(viewed.step(4, 0, 1)[1]) == ALL


def test_plan_alone_shows_its_steps(trained):
    with loader.Root(trained) as root:
        name = loader.read_trail(root, "one").starts[0].plan
        with Viewed(root, name, None) as viewed:
            values, record = viewed.step(2, 0, 1)
            assert proved(record) == {"planned": True, "bytes": None, "code": None, "tensors": None}
            assert "loader.Trail" in text_of(record, "bytes")
            assert len(record.slots) == len(values.ids) == BATCH


def test_place_is_a_run_a_step_a_plan_or_a_state(trained, tmp_path):
    with loader.Root(trained) as root:
        assert resolve_run_step(root, "one") == ("one", None)
        assert resolve_run_step(root, "one@5") == ("one", 5)
        with refusal(InvalidRuntime, what="step", where="one@five", given="five"):
            resolve_run_step(root, "one@five")
        plan = loader.open_plan(root, loader.read_trail(root, "one").starts[0].plan)
        state = tmp_path / "state.json"
        state.write_text(json.dumps(plan.state(4)))
        assert resolve_run_step(root, str(state)) == (plan.hash, 3)
