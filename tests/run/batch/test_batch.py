"""What a batch says of itself: ids, mask, weight, and where iteration ends."""

import pickle
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice

import google_crc32c
import numpy as np
import pytest
import torch

import loader
from loader.errors import InvalidRuntime, TransformFailed
from loader.order.random.keyed_permutation import hash_fields, sub
from loader.run.batch.batch import Batch
from tests.refusals import refusal


@pytest.fixture
def photos(versions):
    return versions["photos"]


def make_plan(view, global_batch=10, seed=4):
    return loader.plan({"s": view}, seed=seed, global_batch=global_batch)


def test_without_bounds_iteration_is_endless(photos):
    plan = make_plan(photos.select("cls"))
    with loader.Loader(plan, 0, 1, workers=1) as batches:
        assert [batch.step for batch in islice(batches, 25)] == list(range(25))


def test_steps_end_the_iteration_at_a_global_step(photos):
    plan = make_plan(photos.select("cls"))
    with loader.Loader(plan, 0, 1, workers=2, steps=3) as batches:
        assert [batch.step for batch in batches] == [0, 1, 2]
        assert list(batches) == []
        batches.seek(2)
        assert [batch.step for batch in batches] == [2]
        batches.seek(3)
        assert next(batches, None) is None
    with loader.Loader(plan, 0, 1, workers=2, steps=0) as batches:
        assert list(batches) == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("epochs", [1, 2])
def test_epochs_deliver_every_sample_equally_often(photos, epochs, workers):
    """43 samples in batches of 10: the last batch is padded, here for some ranks wholly."""
    plan = make_plan(photos.select("cls", "x.npy", "ragged.npy", "txt", "json"))
    seen = []
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(loader.Loader(plan, rank, 5, workers=workers, epochs=epochs))
            for rank in range(5)
        ]
        for batches in zip(*ranks, strict=True):
            for batch in batches:
                assert len(batch.ids) == len(batch) == 2
                assert batch.mask.tolist() == [one is not None for one in batch.ids]
                assert batch["x.npy"].shape == (2, 2, 3)
                assert batch["x.npy"].dtype == torch.int32
                assert batch["cls"].shape == (2,)
                assert len(batch["txt"]) == len(batch["json"]) == len(batch["ragged.npy"]) == 2
                for slot in np.flatnonzero(~batch.mask.numpy()):
                    assert not batch["x.npy"][slot].any()
                    assert batch["cls"][slot] == 0
                    assert batch["txt"][slot] == ""
                assert batch.weight == int(batch.mask.sum()) * 5 / 10
                if not batch.mask.any():
                    assert batch.digest == 0
                seen.extend(one for one in batch.ids if one is not None)
        assert {batch.step for batch in batches} == {-(-43 * epochs // 10) - 1}
        assert len(seen) == 43 * epochs
        assert {seen.count(one) for one in set(seen)} == {epochs}
        assert any(not batch.mask.any() for batch in batches)
        assert any(batch.mask.any() for batch in batches)


def test_epochs_and_steps_end_at_whichever_comes_first(photos):
    plan = make_plan(photos.select("cls"))
    for steps, wanted in ((2, 2), (50, 5)):
        with loader.Loader(plan, 0, 1, epochs=1, steps=steps, workers=0) as batches:
            assert len(list(batches)) == wanted


def test_step_after_the_last_epoch_is_refused(photos):
    plan = make_plan(photos.select("cls"))
    with loader.Loader(plan, 1, 2, epochs=1, workers=0) as batches:
        assert not batches.batch_at(4).mask.all()
        with refusal(InvalidRuntime, what="step", given=5):
            batches.batch_at(5)
        batches.seek(5)
        assert next(batches, None) is None


def test_epochs_of_a_mixture_are_refused(versions):
    plan = loader.plan({"a": versions["photos"], "b": versions["web"]}, seed=1, global_batch=4)
    with refusal(InvalidRuntime, what="epochs", where="2 sources", given=1):
        loader.Loader(plan, 0, 1, epochs=1)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_weight_corrects_the_mean_of_means(photos, world_size):
    """With parts of unequal size, and padding: weighted means over ranks are sum / global batch."""
    plan = make_plan(photos.select("cls"), global_batch=11)
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(loader.Loader(plan, rank, world_size, workers=0, epochs=1, framework="numpy"))
            for rank in range(world_size)
        ]
        for batches in zip(*ranks, strict=True):
            values = [batch["cls"][batch.mask].astype(np.float64) for batch in batches]
            means = [value.mean() if len(value) else 0.0 for value in values]
            corrected = np.mean([mean * batch.weight for mean, batch in zip(means, batches, strict=True)])
            assert corrected == pytest.approx(np.concatenate(values).sum() / 11)
            if all(batch.mask.all() for batch in batches):
                assert corrected == pytest.approx(np.concatenate(values).mean())


@pytest.mark.parametrize("workers", [0, 2])
def test_ids_are_a_list_of_the_batchs_own(photos, workers):
    """Made when they are looked at, of what the batch held when it was made; pickled or not, as often as one likes."""
    plan = loader.plan({"s": photos.select("cls")}, seed=4, global_batch=10, boundary="mask")
    with loader.Loader(plan, 0, 1, workers=workers, epochs=1, framework="numpy") as batches:
        taken = list(batches)
    for step, batch in enumerate(taken):
        wanted = [one if one != ("", "") else None for one in plan.batch_ids(step)]
        sent, copied = pickle.loads(pickle.dumps(batch)), replace(batch)  # noqa: S301
        assert len(batch) == len(sent) == 10
        assert type(batch.ids) is type(sent.ids) is list
        assert batch.ids == sent.ids == copied.ids == wanted
        assert batch.ids is batch.ids
        batch.ids[0] = None
        assert sent.ids == wanted
        batch.ids = [("s", "another")]
        assert (batch.ids, len(batch)) == ([("s", "another")], 1)
    assert taken[-1].ids == [("s", "another")]


def test_batch_at_gives_any_step_and_moves_nothing(photos):
    plan = make_plan(photos.select("cls"))
    with loader.Loader(plan, 0, 2, workers=2) as batches:
        first = next(batches)
        far = batches.batch_at(10**6)
        again = batches.batch_at(0)
        assert (far.step, batches.step) == (10**6, 1)
        assert (again.ids, again.digest) == (first.ids, first.digest)
        assert next(batches).step == 1


def test_error_stays_at_its_step_and_can_be_passed(photos):
    plan = make_plan(photos.select("cls"))
    bad = plan.batch_ids(3)[4][1]

    def transform(sample, rng):
        if f"photos/{sample['cls']:03d}" == bad:
            raise OverflowError("too bright")
        return sample

    for workers in (0, 1, 3):
        with loader.Loader(plan, 0, 1, workers=workers, transform=transform) as batches:
            assert [next(batches).step for _ in range(3)] == [0, 1, 2]
            for _ in range(2):
                with refusal(TransformFailed, given="OverflowError", within="sample '"):
                    next(batches)
                assert batches.step == batches.state_dict()["step"] == 3
            batches.seek(4)
            assert next(batches).step == 4


def test_torch_and_numpy_hold_the_same(photos):
    plan = make_plan(photos.select("x.npy", "cls"))
    with (
        loader.Loader(plan, 0, 1, workers=0) as tensors,
        loader.Loader(plan, 0, 1, workers=0, framework="numpy") as arrays,
    ):
        tensor, array = next(tensors), next(arrays)
    assert isinstance(tensor["x.npy"], torch.Tensor)
    assert isinstance(tensor.mask, torch.Tensor)
    assert isinstance(array["x.npy"], np.ndarray)
    assert isinstance(array.mask, np.ndarray)
    assert tensor["x.npy"].numpy().tobytes() == array["x.npy"].tobytes()
    assert array.nbytes == tensor.nbytes == array["x.npy"].nbytes + array["cls"].nbytes


def test_none_of_a_transform_stays_none(photos):
    """Also where other samples have a large array in that field, whose memory has a row for every slot."""

    def transform(sample, rng):
        number = sample["cls"]
        return {"all": None, "some": np.full(2000, number) if number % 2 else None, "cls": number}

    plan = make_plan(photos.select("cls"))
    with loader.Loader(plan, 0, 1, workers=0, transform=transform, framework="numpy") as batches:
        batch = next(batches)
    assert batch["all"] == [None] * 10
    for number, value in zip(batch["cls"].tolist(), batch["some"], strict=True):
        assert (value is None) == (number % 2 == 0)
        assert value is None or (value == number).all()


def test_batch_reads_like_a_mapping_of_its_fields(photos):
    plan = make_plan(photos.select("x.npy", "cls"))
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        batch = next(batches)
    assert list(batch) == list(batch.keys()) == ["x.npy", "cls"]
    assert dict(batch.items())["cls"] is batch["cls"]
    assert "cls" in batch
    assert "jpg" not in batch
    assert batch.wait_s > 0
    with pytest.raises(KeyError):
        batch["jpg"]


def test_fields_come_in_the_order_selected(photos):
    for fields in (("txt", "cls"), ("cls", "txt")):
        with loader.Loader(make_plan(photos.select(*fields)), 0, 1, workers=0) as batches:
            assert tuple(next(batches)) == fields


class Pageable:
    """What pin_memory needs of a tensor; pinning a real one takes an accelerator."""

    pinned = False

    def pin_memory(self):
        copy = Pageable()
        copy.pinned = True
        return copy


def test_everything_that_can_be_pinned_is():
    batch = loader.Batch(
        step=0,
        ids=[None],
        mask=Pageable(),
        weight=1.0,
        digest=0,
        fields={"one": Pageable(), "list": [Pageable(), None], "txt": ["a"]},
    )
    pinned = batch.pin_memory()
    assert pinned.mask.pinned
    assert pinned["one"].pinned
    assert pinned["list"][0].pinned
    assert pinned["list"][1] is None
    assert pinned["txt"] == ["a"]


def test_digest_by_its_formula(versions):
    """docs/order.md, in plain integers, over bytes read at the addresses that explain gives."""
    plan = loader.plan(
        {"p": versions["photos"].select("txt", "cls"), "w": versions["web"].select("x.npy")},
        seed=1,
        global_batch=7,
    )
    start = hash_fields("delivered")
    wanted = 0
    for one in loader.explain(plan, 3):
        view = plan.sources[one.source].view
        crcs = b""
        for field in sorted(view.fields):
            at = one.address.fields[field]
            data = view.version.store.get_range(at.path, at.offset, at.nbytes).data
            crcs += field.encode() + b"\0" + google_crc32c.value(data).to_bytes(4, "little")
        identity = sub(hash_fields("identity", view.version.id), one.address.ordinal)
        slot = sub(sub(start, 3), one.slot)
        wanted += sub(sub(slot, identity), google_crc32c.value(crcs))
    with ExitStack() as stack:
        ranks = [stack.enter_context(loader.Loader(plan, rank, 3, workers=0)) for rank in range(3)]
        assert sum(rank.batch_at(3).digest for rank in ranks) % 2**64 == wanted % 2**64


@pytest.mark.parametrize("steps", [None, 0, 3])
def test_loader_is_true_whatever_its_length(photos, steps):
    plan = loader.plan({"s": photos}, seed=4, global_batch=10)
    with loader.Loader(plan, 0, 1, steps=steps, workers=0) as batches:
        assert bool(batches)
    assert bool(loader.torch_dataset(plan, 0, 1, steps=steps))


def test_length_is_that_of_the_whole_run(photos):
    """43 samples: frameworks ask for it, and read a batch ahead where there is none."""
    plan = make_plan(photos.select("cls"))
    for options, wanted in (({"steps": 3}, 3), ({"epochs": 2}, 9), ({"epochs": 2, "steps": 4}, 4)):
        with loader.Loader(plan, 0, 1, **options) as batches:
            assert len(batches) == batches.end == wanted
            batches.seek(2)
            assert len(batches) == wanted
            assert len(list(batches)) == wanted - 2
        assert len(loader.torch_dataset(plan, 0, 1, **options)) == wanted
    with loader.Loader(plan, 0, 1) as batches, pytest.raises(TypeError, match="steps="):
        len(batches)
    assert batches.end is None
    with pytest.raises(TypeError, match="steps="):
        len(loader.torch_dataset(plan, 0, 1))


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_batch_moves_to_a_device_with_its_tensors_alone(photos, device):
    plan = make_plan(photos.select("cls", "x.npy", "ragged.npy", "txt"))
    with loader.Loader(plan, 0, 1, steps=1) as batches:
        (batch,) = batches
    moved = batch.to(device, non_blocking=True)
    assert isinstance(moved, loader.Batch)
    assert {moved["cls"].device.type, moved["x.npy"].device.type, moved.mask.device.type} == {device}
    assert {item.device.type for item in moved["ragged.npy"]} == {device}
    assert moved["txt"] == batch["txt"]
    assert (moved.step, moved.ids, moved.digest, moved.weight, moved.nbytes, moved.wait_s) == (
        batch.step, batch.ids, batch.digest, batch.weight, batch.nbytes, batch.wait_s
    )  # fmt: skip
    assert batch["cls"].device.type == batch.mask.device.type == "cpu"  # the batch itself stays where it is
    with loader.Loader(plan, 0, 1, steps=1, framework="numpy") as batches:
        (arrays,) = batches
    assert isinstance(arrays.to(device)["cls"], np.ndarray)


@pytest.mark.parametrize("workers", [0, 2])
def test_masked_epochs_end_in_padding(photos, workers):
    """43 samples in batches of 10, padded at each epoch's end by the plan itself; ranks, resume and digests agree."""
    plan = loader.plan({"s": photos.select("cls", "txt")}, seed=4, global_batch=10, boundary="mask")
    with loader.Loader(plan, 0, 1, workers=workers, epochs=2) as batches:
        whole = list(batches)
    assert [sum(one is not None for one in batch.ids) for batch in whole] == [10, 10, 10, 10, 3] * 2
    assert [batch.weight for batch in whole[:5]] == [1, 1, 1, 1, 0.3]
    for epoch in (whole[:5], whole[5:]):
        seen = [one for batch in epoch for one in batch.ids if one is not None]
        assert len(seen) == len(set(seen)) == 43
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(loader.Loader(plan, rank, 4, workers=workers, epochs=2)) for rank in range(4)
        ]
        for batches in ranks:
            batches.load_state_dict(plan.state(4))
        for alone, *parts in zip(whole[4:], *ranks, strict=True):
            assert [one for part in parts for one in part.ids] == alone.ids
            assert sum(part.digest for part in parts) % 2**64 == alone.digest
            assert sum(part.weight for part in parts) == pytest.approx(4 * alone.weight)
    assert len(loader.explain(plan, 4)) == 3


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_batch_prints_shapes_and_dtypes_and_no_values(device):
    fields = {
        "jpg": [b"bytes"] * 3,
        "cls": np.zeros(3, np.int64),
        "image": torch.zeros(3, 2, 4),
        "far": torch.zeros(3, 2, device=device),
        "ragged": [np.zeros((2, n, 3), np.uint8) for n in range(3)],
        "ranks": [torch.zeros(1), torch.zeros(1, 2), torch.zeros(2)],
        "mixed": [None, "text", np.zeros(2)],
        "none": [],
    }
    batch = Batch(step=12, ids=[("s", "a")] * 3, mask=np.ones(3, bool), weight=1.0, digest=1, fields=fields)
    columns = (
        f"jpg: list of 3 bytes, cls: int64 [3], image: float32 [3, 2, 4], far: float32 [3, 2] on {device}, "
        "ragged: list of 3 uint8 [2, *, 3], ranks: list of 3 float32, mixed: list of 3 NoneType or str or float64, "
        "none: list of 0"
    )
    assert repr(batch) == f"Batch(step=12, 3 slots, {columns})"
    bucketed = replace(batch, bucket="b3", fields={"cls": fields["cls"]}, substitutions=[None] * 2)
    assert repr(bucketed) == "Batch(step=12, 3 slots, bucket='b3', 2 substitutions, cls: int64 [3])"
    assert (
        repr(bucketed.micro_batches(3)[1])
        == "Batch(step=12, 1 slots, bucket='b3', micro 1 of 3, cls: int64 [1])"
    )


def test_printing_a_batch_puts_no_ids_together(photos):
    with loader.Loader(make_plan(photos.select("cls")), 0, 1, workers=0) as batches:
        batch = next(batches)
        assert repr(batch) == "Batch(step=0, 10 slots, cls: int64 [10])"
        assert not isinstance(batch.__dict__["ids"], list)


def test_plan_a_version_a_view_and_a_root_print_one_line(photos):
    plan = loader.plan({"s": photos, "t": photos.select("cls")}, seed=4, global_batch=10)
    assert repr(plan) == f"Plan({plan.hash[:14]}, seed=4, global_batch=10, sources s, t)"
    bucketed = loader.plan(
        {"s": photos.select("cls")}, seed=4, global_batch=2, bucket_by="even", allow_repeats=True
    )
    assert f"global_batch=2, {len(bucketed.streams)} buckets, sources s)" in repr(bucketed)
    many = loader.plan({f"s{i}": loader.synthetic(50) for i in range(10)}, seed=4, global_batch=2)
    assert repr(many).endswith("s7 and 2 more)")
    assert repr(photos) == f"Version({photos.name!r}, {len(photos)} samples, {photos.id[:14]})"
    assert repr(photos.where("i < 3").select("cls")) == f"View({photos.name!r}: cls where i < 3)"
    assert repr(photos.reader) == f"Root({photos.store.url!r})"
