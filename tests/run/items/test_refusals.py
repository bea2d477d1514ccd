"""A plan over a dataset: operations that need stored bytes are refused, and the others give the run's batches."""

import numpy as np
import pytest
import torch

import loader
from loader.errors import EmptyView, InvalidPlan, InvalidRuntime, PlanMismatch
from penstock.cli import main
from tests.refusals import refusal

STEPS = 3
BATCH = 30


@pytest.fixture
def plan(datasets):
    return loader.plan({"photos": datasets.Augmented()}, seed=7, global_batch=BATCH)


@pytest.fixture
def root(tmp_path):
    return loader.Root(tmp_path / "root")


def digests(batches):
    return [batch.digest for batch in batches]


def run_with_trail(root, plan):
    """Return the digests of a run that root keeps as "r1"."""
    plan.save(root)
    trail = loader.Trail(root, run="r1")
    with loader.Loader(plan, 0, 1, steps=STEPS, trail=trail) as batches:
        return digests(batches)


@pytest.mark.parametrize(
    ("option", "accepted"),
    [
        ({"bucket_by": "width"}, "views that can be split into buckets"),
        ({"pack": loader.pack("0", 128)}, "views that can be packed"),
    ],
)
def test_plan_refuses_what_needs_stored_samples(datasets, option, accepted):
    view = loader.items(datasets.Pictures())
    with refusal(InvalidPlan, what="source 'photos'", given="ItemsView", accepted=accepted) as raised:
        loader.plan({"photos": view}, seed=1, global_batch=8, **option)
    assert "Write them into a version" in str(raised.value)


def test_by_score_refuses_a_dataset(datasets):
    with refusal(InvalidPlan, what="source 'photos'", given="ItemsView"):
        loader.by_score("photos", datasets.Pictures(), "score", [1, 2])


def test_listed_and_norm_refuse_a_dataset(datasets):
    view = loader.items(datasets.Pictures())
    with refusal(InvalidPlan, what="view", given="ItemsView"):
        loader.listed(view, [1, 2])
    with refusal(InvalidPlan, what="windows", given="ItemsView"):
        loader.norm(view, "0")


def test_windows_refuse_a_dataset(datasets):
    view = loader.items(datasets.Pictures())
    with refusal(InvalidPlan, what="episodes", given="ItemsView"):
        loader.windows(view, anchor="0", at={"0": [0]})


def test_growth_of_a_dataset_is_refused(datasets, plan):
    longer = datasets.Augmented(200)
    for view in (longer, loader.items(longer)):
        with refusal(InvalidPlan, what="dataset", where="source 'photos'"):
            plan.grow({"photos": view}, 10)


def test_explain_goes_to_ordinal_key_and_fingerprint(plan):
    slots = plan.slots(1)
    explained = loader.explain(plan, 1)
    assert [one.address.ordinal for one in explained] == slots.ordinal.tolist()
    assert [one.position for one in explained] == slots.position.tolist()
    assert explained[0].dataset.name == "photos"
    assert explained[0].dataset.is_open
    assert "fingerprint none: changed content" in str(explained[0])


def test_decoder_for_a_field_of_items_is_refused(plan):
    decode = {"image": lambda data, rng: data}
    with refusal(InvalidRuntime, what="decode", given=["image"]):
        loader.Loader(plan, 0, 1, decode=decode)


TORCH = "torch.utils.data"


@pytest.mark.parametrize(
    ("dataset", "name", "accepted"),
    [
        ("photos", "photos", "a version or a dataset"),
        ({"a": 1}, "the builtins.dict", "list(...) of its values"),
        ({"train": [1]}, "the builtins.dict", "['train'] of it"),
        ({1, 2}, "the builtins.set", "__len__ and __getitem__(int)"),
        (iter([1]), "the builtins.list_iterator", "list(...) of it, or a map-style dataset"),
        (7, "the builtins.int", "__getitem__(int)"),
        (object(), "the builtins.object", "__getitem__(int)"),
        (lambda: 7, "the builtins.int", "__getitem__(int)"),
        (lambda: list, "the builtins.function", "a dataset"),
        (torch.utils.data.DataLoader([1]), f"the {TORCH}.dataloader.DataLoader", "its .dataset"),
        (torch.utils.data.ChainDataset([]), f"the {TORCH}.dataset.ChainDataset", "a map-style dataset"),
    ],
)
def test_source_that_is_no_dataset_names_the_alternative(dataset, name, accepted):
    with refusal(InvalidPlan, what="dataset", given=name, accepted=accepted) as raised:
        loader.plan({"photos": dataset}, seed=1, global_batch=1)
    assert str(raised.value).startswith("source 'photos': ")


def test_source_without_items_is_refused():
    with refusal(EmptyView, what="length", where="the builtins.list", given=0):
        loader.plan({"photos": []}, seed=1, global_batch=1)


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ({"name": ""}, {"what": "name", "given": ""}),
        ({"fields": "image"}, {"what": "fields", "given": "image"}),
        ({"fields": ["a", "a"]}, {"what": "fields", "given": ("a", "a")}),
        ({"keys": ["a"]}, {"what": "keys", "given": 1, "accepted": 3}),
        ({"keys": ["a", "b", "a"]}, {"what": "keys", "given": "1 repeated names"}),
        ({"keys": ["a", 2, "c"]}, {"what": "keys[1]", "given": 2}),
        ({"keys": "abc"}, {"what": "keys", "given": "str"}),
        ({"fingerprint": 7}, {"what": "fingerprint", "given": 7}),
        ({"length": -1}, {"what": "length", "given": -1}),
        ({"length": 2**63}, {"what": "length", "given": 9223372036854775808}),
        ({"seeded": "yes"}, {"what": "seeded", "given": "yes"}),
    ],
)
def test_wrong_option_of_items_is_named(option, fault: dict[str, object]):
    with refusal(InvalidPlan, **fault):
        loader.items([1, 2, 3], **option)


def test_describe_says_what_goes_unnoticed(datasets):
    def line(dataset):
        plan = loader.plan({"photos": dataset}, seed=1, global_batch=8)
        return plan.describe().splitlines()[2]

    assert "changed content of the same length goes unnoticed" in line(datasets.Pictures())
    with_keys = loader.items(datasets.Pictures(3), keys=["a", "b", "c"])
    plan = loader.plan({"photos": with_keys}, seed=1, global_batch=3)
    assert "fingerprint keys-" in plan.describe()
    assert "unnoticed" not in plan.describe()
    assert "items may differ from run to run" in line(loader.items(datasets.OwnGenerator(), seeded=False))


def test_replay_gives_the_batches_of_the_run(datasets, root, plan):
    recorded = run_with_trail(root, plan)
    again = loader.open_plan(root, plan.hash, items={"photos": datasets.Augmented()})
    with loader.Replay(again) as replay:
        assert [replay.digest(step) for step in range(STEPS)] == recorded
        assert replay.batch(1).digest == recorded[1]
        parts = [replay.digest(2, rank, 3) for rank in range(3)]
        assert sum(parts) % 2**64 == recorded[2]
        slot = replay.slot(1, 2)
        image = replay.batch(1)["image"][2]
        assert torch.equal(slot.trained["image"], image)
        assert slot.address.key == str(plan.slots(1).ordinal[2])
        kept = {}
        each = replay.each(1, kept.__setitem__)
        assert each.digest == recorded[1]
        assert each.ids == replay.batch(1).ids
        assert torch.equal(kept[2]["image"], image)


def test_replay_without_the_dataset_has_no_digest(root, plan):
    run_with_trail(root, plan)
    with loader.Replay(loader.open_plan(root, plan.hash)) as replay:
        assert replay.slots(1).ordinal.tolist() == plan.slots(1).ordinal.tolist()
        assert list(replay.missing_datasets) == ["photos"]
        for ask in (replay.digest, replay.batch, lambda step: replay.each(step, lambda row, sample: None)):
            with refusal(InvalidRuntime, what="items", where="source 'photos'", given="photos"):
                ask(1)
        slot = replay.slot(1, 2)
        assert slot.decoded == {}
        assert "pass --recipe module:function" in str(slot.error)


def test_replay_makes_the_digest_of_each_half_of_a_mixture(datasets, root):
    with root.write("rows") as writer:
        for i in range(50):
            writer.add(f"{i:03d}", {"cls": i})
    sources = {"photos": datasets.Augmented(), "rows": root.open("rows@1")}
    plan = loader.plan(sources, seed=7, global_batch=BATCH)
    recorded = run_with_trail(root, plan)
    again = loader.open_plan(root, plan.hash, items={"photos": datasets.Augmented()})
    with loader.Replay(again) as replay:
        assert [replay.digest(step) for step in range(STEPS)] == recorded
        assert replay.each(1, lambda row, sample: None).digest == recorded[1]
    stored_rows = np.flatnonzero(plan.slots(1).source == plan.source_names.index("rows"))
    with loader.Replay(loader.open_plan(root, plan.hash)) as replay:
        taken = []
        part = replay.each(1, lambda row, sample: taken.append(row), skip_missing=True)
        assert sorted(taken) == stored_rows.tolist()
        assert [row for row, one in enumerate(part.ids) if one is not None] == stored_rows.tolist()


def test_plan_without_its_dataset_has_the_order_only(root, plan, datasets):
    plan.save(root)
    ordinals = plan.slots(5).ordinal
    alone = loader.open_plan(root, plan.hash)
    assert np.array_equal(alone.slots(5).ordinal, ordinals)
    with pytest.raises(
        InvalidRuntime, match=r"or loader.open_plan\(root, hash, items=\{'photos': dataset\}\)"
    ):
        loader.Loader(alone, 0, 1)
    with refusal(PlanMismatch, what="items['photos']", given=(99, "")):
        loader.open_plan(root, plan.hash, items={"photos": datasets.Augmented(99)})


def test_commands_say_what_they_cannot_make(root, plan, capsys):
    run_with_trail(root, plan)

    def command(*words):
        code = main([*words, "--root", root.url])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    for slot in ((), ("--slot", "2")):
        code, text = command("batch", "r1@1", *slot)
        assert code == 0
        assert "pass --recipe module:function" in text
        assert "items={'photos': dataset}" in text
    code, text = command("trail", "verify", "r1")
    assert code != 0
    assert f"0 differ, {STEPS} could not be checked" in text
    # The order alone answers these.
    key = str(plan.slots(1).ordinal[4])
    code, text = command("seen", "r1", "photos", key)
    assert code == 0
    assert text.split()[-3:] == ["1", "4", "0"]
    assert command("trail", "window", "r1")[0] == 0
    assert command("trail", "against", "r1", "r1") == (0, f"{STEPS} steps are equal\n")


@pytest.mark.parametrize("n_workers", [0, 2])
def test_torch_dataset_gives_the_same_batches(plan, n_workers):
    with loader.Loader(plan, 0, 1, steps=STEPS) as batches:
        expected = digests(batches)
    dataset = loader.torch_dataset(plan, steps=STEPS)
    batches = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=n_workers)
    assert digests(batches) == expected


def test_device_thread_leaves_items_to_processes(plan):
    with loader.Loader(plan, 0, 1, steps=STEPS) as batches:
        expected = digests(batches)
    with loader.Loader(plan, 0, 1, steps=STEPS, device="cpu") as batches:
        assert batches.executor == "processes"
        assert digests(batches) == expected
    with refusal(InvalidRuntime, what="workers", given=0):
        loader.Loader(plan, 0, 1, device="cpu", workers=0)


def test_quarantined_item_has_a_substitute(datasets):
    keys = [f"photo-{number}" for number in range(datasets.N)]
    view = loader.items(datasets.Pictures(), keys=keys)
    plan = loader.plan({"photos": view}, seed=7, global_batch=BATCH, quarantine={"photos": ["photo-3"]})
    with loader.Loader(plan, 0, 1, steps=4) as batches:
        delivered = [key for batch in batches for _, key in batch.ids]
    assert "photo-3" not in delivered
    assert len(delivered) == 4 * BATCH
