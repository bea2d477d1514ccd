"""Lists over real versions: what a training reads, and the file in the root."""

import io

import numpy as np
import pyarrow.parquet as pq

import loader
from loader.dataset.tables.parquet import table_bytes
from loader.dataset.versions.stored_list import list_path, parse_list, read_list
from loader.errors import Corrupt, InvalidPlan
from tests.refusals import refusal

LIST = [7, 2, 2, 19, *range(8, 18), 0, 1]


def write(root, n=20, name="photos", first=0):
    with root.write(name, part_samples=6) as writer:
        for number in range(first, first + n):
            writer.add(f"k{number:02d}", {"txt": f"text {number}"}, metadata={"n": number})
    return writer.version


def save_plan(root, view, batch=4, **more):
    made = loader.plan({"photos": view}, seed=5, global_batch=batch, **more)
    made.save(root)
    return made


def run(plan, steps, state=None, *, workers=0, **options):
    """Return the keys of each step; the state after them."""
    with loader.Loader(plan, steps=steps, workers=workers, **options) as batches:
        if state is not None:
            batches.load_state_dict(state)
        return [[key for _, key in batch.ids] for batch in batches], batches.state_dict()


def test_training_reads_the_list_then_shuffles_it(root):
    version = write(root)
    plan = save_plan(root, loader.listed(version, LIST))
    keys, _ = run(plan, 12)
    for step in range(4):
        assert sorted(keys[step]) == sorted(version.keys(np.array(LIST[4 * step : 4 * step + 4])))
    assert sorted(key for step in keys[4:8] for key in step) == sorted(version.keys(np.array(LIST)))
    opened = loader.open_plan(root, plan.hash)
    assert opened.hash == plan.hash
    begun, state = run(opened, 3)
    rest, _ = run(opened, 12, state)
    assert begun + rest == keys


def test_ranks_workers_and_explain_tell_the_same(root):
    version = write(root)
    plan = save_plan(root, loader.listed(version.select("txt"), LIST))
    whole = [[key for _, key in plan.batch_ids(step)] for step in range(8)]
    for world in (1, 2, 3):
        parts = [run(plan, 8, workers=world - 1, rank=rank, world_size=world)[0] for rank in range(world)]
        assert [[key for part in parts for key in part[step]] for step in range(8)] == whole
    assert [one.address.key for one in loader.explain(plan, 1)] == whole[1]
    (first, *_) = plan.steps_of("photos", version.keys(np.array([7]))[0], before=4)
    assert (first.step, first.epoch, whole[0][first.slot]) == (0, 0, version.keys(np.array([7]))[0])


def test_worker_processes_make_the_same_batches(tmp_path):
    root = loader.Root(str(tmp_path))
    plan = save_plan(root, loader.listed(write(root), LIST))
    assert run(plan, 6, workers=1, executor="processes") == run(plan, 6)


def test_views_keys_and_quarantine(root):
    version = write(root)
    odd = version.select("txt").where("n % 2 = 1")
    keys = [f"k{number:02d}" for number in (5, 3, 19, 1, 7, 5, 9, 11, 13, 15, 17, 3)]
    view = loader.listed(odd, odd.ordinals(keys))
    assert view.keys(view.in_order) == keys
    plan = save_plan(root, view, quarantine={"photos": ["k07"]})
    opened = loader.open_plan(root, plan.hash)
    for step in range(3):
        slots, ids = opened.slots(step), opened.batch_ids(step)
        for place, attempt, (_, key) in zip(
            slots.position.tolist(), slots.attempt.tolist(), ids, strict=True
        ):
            assert (key == keys[place]) == (keys[place] != "k07") == (attempt == 0)
    with refusal(InvalidPlan, what="ordinal", where="photos@1", given=15):
        loader.listed(odd, version.select().ordinals(["k05", "k06"]))


def test_samples_that_a_later_version_lacks_are_refused_by_place(root):
    version = write(root)
    plan = save_plan(root, loader.listed(version, LIST))
    root.exclude("photos@1", ["k03"], reason="bad")
    later = root.open("photos@latest")
    assert loader.open_plan(root, plan.hash).hash == plan.hash, "the version of the plan has it still"
    with refusal(InvalidPlan, what="listed", where="place 1", given=-1):
        loader.listed(later, later.select().ordinals(["k01", "k03"]))
    with refusal(InvalidPlan, what="ordinal", where="photos@2", given=19):
        loader.listed(later, [19])
    with refusal(InvalidPlan, what="list", where="source 'photos'"):
        plan.grow({"photos": later}, 3)


def test_file_is_plain_and_made_once(root):
    view = loader.listed(write(root), LIST)
    (info,) = root.store.list("lists/")
    assert info.key == list_path(view.list_sha256)
    assert pq.read_table(io.BytesIO(root.store.get(info.key).data))["ordinal"].to_pylist() == LIST
    before = root.store.get(info.key).data
    loader.listed(view.listed, np.array(LIST, np.int32))
    assert root.store.get(info.key).data == before


def test_damaged_or_missing_list_stops_the_plan(root):
    version = write(root)
    plan = save_plan(root, loader.listed(version, LIST))
    (info,) = root.store.list("lists/")
    data = root.store.get(info.key).data
    other = loader.listed(version, LIST[::-1])
    root.store.delete_many([info.key])
    with refusal(InvalidPlan, what=info.key, where=root.store.url):
        loader.open_plan(root, plan.hash)
    root.store.put(info.key, root.store.get(list_path(other.list_sha256)).data)
    with refusal(Corrupt, what="path", where=f"{root.url}/{info.key}", accepted=info.key):
        loader.open_plan(root, plan.hash)
    root.store.put(info.key, table_bytes(pq.read_table(io.BytesIO(data)).slice(1), "list"))
    with refusal(Corrupt, what="sha256", where=f"{root.url}/{info.key}"):
        loader.listed(version, LIST)
    with refusal(Corrupt, what="columns", where="it", given=["x"], accepted=["ordinal"]):
        parse_list(table_bytes(pq.read_table(io.BytesIO(data)).rename_columns(["x"]), "list"), info.key, "it")
    assert read_list(root.store, "0" * 64) is None
