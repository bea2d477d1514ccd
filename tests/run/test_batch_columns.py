"""Columns of the samples table in batches: types, class numbers, and equal values on every rank and executor."""

import struct

import numpy as np
import pytest
import torch

import loader
from loader.dataset.tables.parquet import ROW_GROUP_ROWS
from loader.errors import FieldMismatch, FieldNotFound, InvalidPlan
from penstock.formats.registration.register import register
from tests.refusals import refusal

LABELS = ("dog", "cat", "bee")
N = 40


def metadata(n):
    return {
        "label": LABELS[n % 3],
        "size": n * n,
        "score": n / 4,
        "sharp": n % 2 == 0,
        "rated": None if n == 7 else n,
    }


@pytest.fixture
def root(tmp_path):
    """A root whose dataset `photos` has several parts and an excluded sample."""
    with loader.Root(tmp_path / "root") as root:
        root.create()
        with root.write("photos", part_samples=9) as writer:
            for n in range(N):
                writer.add(f"k{n:02d}", {"x.npy": np.array([n])}, metadata=metadata(n))
        root.exclude("photos@1", ["k05"], reason="blurred")
        yield root


def copy_sample(sample, rng):
    return dict(sample)


def by_key(batches, name):
    """Return key -> value of all rows of these batches."""
    rows = {}
    for batch in batches:
        values = batch[name]
        plain = values if isinstance(values, list) else values.tolist()
        for slot, value in zip(batch.ids, plain, strict=True):
            if slot is not None:  # padding after the last sample of the epoch
                rows[slot[1]] = value
    return rows


def expected_column(name, of=lambda value: value):
    return {f"k{n:02d}": of(metadata(n)[name]) for n in range(N) if n != 5}


@pytest.mark.parametrize("transform", [None, copy_sample])
def test_numbers_and_texts_become_arrays_and_lists(root, transform):
    names = ("label", "size", "score", "sharp")
    view = root.open("photos@latest").select("x.npy", columns=names)
    plan = loader.plan({"p": view}, seed=3, global_batch=13)
    with loader.Loader(plan, 0, 1, transform=transform, epochs=1) as batches:
        read = list(batches)
    first = read[0]
    assert list(first.fields) == ["x.npy", *names]
    kinds = {name: first[name].dtype for name in ("size", "score", "sharp")}
    assert kinds == {"size": torch.int64, "score": torch.float64, "sharp": torch.bool}
    assert isinstance(first["label"], list)
    for name in names:
        assert by_key(read, name) == expected_column(name)


@pytest.mark.parametrize(
    ("world_size", "options"),
    [(3, {"workers": 0}), (2, {"workers": 2}), (1, {"executor": "processes", "workers": 1})],
)
def test_columns_are_the_same_on_every_rank_and_executor(root, world_size, options):
    version = root.open("photos@latest")
    view = version.select("x.npy", columns={"label": version.classes("label"), "size": None})
    plan = loader.plan({"p": view}, seed=3, global_batch=10)
    rows = {}
    for rank in range(world_size):
        with loader.Loader(plan, rank, world_size, framework="numpy", epochs=1, **options) as batches:
            read = list(batches)
        assert {batch["label"].dtype for batch in read} == {np.dtype(np.int64)}
        rows |= by_key(read, "label")
    assert rows == expected_column("label", sorted(LABELS).index)


def test_classes_are_sorted_and_keep_their_numbers_in_later_versions(root):
    old = root.open("photos@latest").classes("label")
    assert old == ("bee", "cat", "dog")
    with root.write("photos") as writer:
        writer.add("new", {"x.npy": np.array([1])}, metadata={**metadata(0), "label": "ant"})
    newer = root.open("photos@latest")
    assert newer.classes("label") == ("ant", "bee", "cat", "dog")
    assert newer.classes("label", first=old) == ("bee", "cat", "dog", "ant")
    with refusal(FieldMismatch, what="columns", where="size", given="int64"):
        newer.classes("size")


def test_a_plan_stores_columns_and_resumes_with_them(root):
    version = root.open("photos@latest")
    view = version.select("x.npy", columns={"size": None, "label": version.classes("label")})
    plan = loader.plan({"p": view}, seed=3, global_batch=10)
    without = loader.plan({"p": version.select("x.npy")}, seed=3, global_batch=10)
    swapped = loader.plan(
        {"p": version.select("x.npy", columns={"size": None, "label": LABELS})}, seed=3, global_batch=10
    )
    assert len({plan.hash, without.hash, swapped.hash}) == 3
    again = loader.open_plan(root, plan.save(root))
    assert again.hash == plan.hash
    with loader.Loader(plan, 0, 1, framework="numpy") as batches:
        for _ in range(3):
            next(batches)
        state, later = batches.state_dict(), next(batches)
    with loader.Loader(again, 0, 1, framework="numpy") as resumed:
        resumed.load_state_dict(state)
        batch = next(resumed)
    assert list(batch.fields) == ["x.npy", "size", "label"]
    assert batch.digest == later.digest
    np.testing.assert_array_equal(batch["label"], later["label"])


def test_a_view_shows_its_columns_and_keeps_them_through_where_and_buckets(root):
    version = root.open("photos@latest")
    view = version.select("x.npy", columns={"label": version.classes("label")}).where("size > 100")
    first = view[0]
    label = metadata(int(first["__key__"][1:]))["label"]
    assert first["label"] == version.classes("label").index(label)
    assert [sample["label"] for sample in view] == [sample["label"] for sample in view[:]]
    plan = loader.plan({"p": view}, seed=3, global_batch=4, bucket_by="sharp")
    with loader.Loader(plan, 0, 1, framework="numpy", steps=12) as batches:
        rows = by_key(batches, "label")
    assert rows.items() <= expected_column("label", sorted(LABELS).index).items()


def test_sources_of_a_mixture_have_their_own_values(root):
    with root.write("web") as writer:
        for n in range(20):
            writer.add(f"w{n:02d}", {"x.npy": np.array([n])}, metadata={"size": n + 0.5})
    views = {
        name: root.open(f"{name}@latest").select("x.npy", columns=["size"]) for name in ("photos", "web")
    }
    plan = loader.plan(views, seed=3, global_batch=16)
    with loader.Loader(plan, 0, 1, framework="numpy", steps=4) as batches:
        read = list(batches)
    assert {batch["size"].dtype for batch in read} == {np.dtype(np.float64)}
    for key, value in by_key(read, "size").items():
        assert value == (int(key[1:]) + 0.5 if key[0] == "w" else int(key[1:]) ** 2)


def test_annotated_labels_are_those_of_the_plans_version(root):
    before = root.open("photos@latest")
    after = root.annotate("photos@latest", "fixed", {"k03": {"label": "wasp"}}, author="ann").version
    rows = {}
    for version in (before, after):
        view = version.select("x.npy", columns=["label"])
        plan = loader.plan({"p": view}, seed=3, global_batch=13)
        with loader.Loader(plan, 0, 1, epochs=1) as batches:
            rows[version.name] = by_key(batches, "label")
    assert rows[before.name] == expected_column("label")
    assert rows[after.name] == expected_column("label") | {"k03": "wasp"}


def test_sample_without_a_value_is_named_with_the_alternative(root):
    version = root.open("photos@latest")
    view = version.select("x.npy", columns=["rated"])
    plan = loader.plan({"p": view}, seed=3, global_batch=39)
    with loader.Loader(plan, 0, 1) as batches, pytest.raises(FieldMismatch) as error:
        next(batches)
    assert "'k07'" in str(error.value)
    assert 'where("rated IS NOT NULL")' in str(error.value)
    plan = loader.plan({"p": view.where("rated IS NOT NULL")}, seed=3, global_batch=38)
    with loader.Loader(plan, 0, 1, epochs=1) as batches:
        assert by_key(batches, "rated") == {
            key: n for key, n in expected_column("rated").items() if n is not None
        }


def test_a_label_outside_of_the_class_names_is_named(root):
    view = root.open("photos@latest").select("x.npy", columns={"label": ["bee", "cat"]})
    plan = loader.plan({"p": view}, seed=3, global_batch=39)
    with loader.Loader(plan, 0, 1) as batches, pytest.raises(FieldMismatch, match=r"none of the 2.*'dog'"):
        next(batches)


def test_a_plan_grows_only_with_the_same_columns(root):
    old, columns = root.open("photos@latest"), {"label": ["bee", "cat", "dog"]}
    with root.write("photos") as writer:
        for n in range(20):
            writer.add(f"new{n}", {"x.npy": np.array([n])}, metadata=metadata(n))
    new = root.open("photos@latest")
    plan = loader.plan({"p": old.select("x.npy", columns=columns)}, seed=3, global_batch=10)
    names = {"label": ("bee", "cat", "dog")}
    with refusal(InvalidPlan, what="columns", where="source 'p'", given={"label": None}, accepted=names):
        plan.grow({"p": new.select("x.npy", columns=["label"])}, 2)
    grown = plan.grow({"p": new}, 2)
    with loader.Loader(grown, 0, 1, framework="numpy", steps=12) as batches:
        rows = by_key(batches, "label")
    assert len(rows) > N
    assert {value for key, value in rows.items() if key.startswith("new")} == {0, 1, 2}


def test_a_substitute_has_its_own_label(root, watch_store):
    store = watch_store(root)
    version = root.open("photos@latest")
    view = version.select("x.npy", columns=["label"])
    plan = loader.plan({"p": view}, seed=3, global_batch=13)
    bad = version.address(view.ordinals(["k03"]), ["x.npy"])[0].fields["x.npy"]

    def change(key, offset, data):
        """Flip the last byte of the bad field."""
        inside = bad.offset + bad.nbytes - 1 - offset
        if key != bad.path or not 0 <= inside < len(data):
            return data
        changed = bytearray(data)
        changed[inside] ^= 1
        return bytes(changed)

    store.change = change
    with loader.Loader(plan, 0, 1, framework="numpy", epochs=1) as batches:
        read = list(batches)
    assert [one.address.key for batch in read for one in batch.substitutions] == ["k03"]
    rows = by_key(read, "label")
    assert rows.items() <= expected_column("label").items()
    assert "k03" not in rows


def test_columns_that_no_batch_can_have_are_refused(root):
    version = root.open("photos@latest")
    with pytest.raises(FieldNotFound, match="did you mean 'label'"):
        version.select("x.npy", columns=["labels"])
    with refusal(InvalidPlan, what="columns", given="label"):
        version.select("x.npy", columns="label")
    with refusal(InvalidPlan, what="class names", where="label", given=("cat", "cat")):
        version.select("x.npy", columns={"label": ["cat", "cat"]})
    with refusal(FieldMismatch, what="columns", where="size", given="int64"):
        version.select("x.npy", columns={"size": ["a"]})
    with refusal(InvalidPlan, what="view", given=["label"]):
        loader.windows(version.select("x.npy", columns=["label"]), anchor="x.npy", at={"x.npy": (0,)})
    with pytest.raises(InvalidPlan, match="leave columns= out"):
        loader.plan(
            {"p": version.select("x.npy", columns=["label"])},
            seed=3,
            global_batch=2,
            pack=loader.pack("x.npy", 8),
        )


def write_documents(folder, n):
    """Write n documents of one token each, as Megatron indexes them: the quickest way to many samples."""
    folder.mkdir()
    np.zeros(n, "<u2").tofile(folder / "train.bin")
    u2 = 8
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, u2, n, n + 1)
    lengths = np.ones(n, "<i4")
    pointers = 2 * np.arange(n, dtype="<i8")
    bounds = np.arange(n + 1, dtype="<i8")
    body = lengths.tobytes() + pointers.tobytes() + bounds.tobytes()
    (folder / "train.idx").write_bytes(head + body)


def samples_table_reads(n, folder, watched):
    """Return the bytes of samples tables that a first batch with a column reads, of a version with n samples."""
    place = folder / f"tokens-{n}"
    write_documents(place, n)
    with loader.Root(folder / f"root-{n}") as root:
        version = register(root, "megatron", str(place), "many").version
        store = watched(root)
        view = root.open(version.id).select("tokens.u2", columns=["key"])
        plan = loader.plan({"p": loader.source(view, chunk=1024, lanes=1)}, seed=3, global_batch=1)
        read = {}

        def note(key, offset, data):
            if "samples-" in key:
                read[key, offset] = len(data)
            return data

        store.change = note
        with loader.Loader(plan, 0, 1, workers=0, framework="numpy") as batches:
            batch = batches.batch_at(0)
        assert batch["key"] == [key for _, key in batch.ids]
        return sum(read.values())


def test_a_first_batch_reads_one_row_group_however_many_samples_there_are(tmp_path, watch_store):
    small, large = (samples_table_reads(n * ROW_GROUP_ROWS, tmp_path, watch_store) for n in (2, 6))
    # One row group of about 340 kB each, and the footer with the last 64 KiB of the file.
    assert 0 < large < 1.05 * small
