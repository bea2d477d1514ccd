"""select and where: which samples, which fields, and at what cost."""

import logging
import math
import pickle

import numpy as np
import pyarrow as pa
import pytest

import loader
from loader.dataset.tables.parquet import parse_table, table_bytes, table_facts
from loader.errors import Corrupt, FieldNotFound, Forbidden
from tests.refusals import refusal


@pytest.fixture
def version(root):
    with root.write("d", part_samples=7, groups={"x": "extra"}) as writer:
        for i in range(30):
            metadata = {"w": i, "licence": "cc-by" if i % 3 else None, "f": math.nan if i == 4 else i / 2}
            writer.add(f"k{i}", {"cls": i, "x": bytes(i)}, metadata=metadata if i != 5 else {})
    return writer.version


def keys(view):
    return sorted(int(key[1:]) for key in view.keys(view.version_ordinals(np.arange(len(view)))))


CASES = {
    "w >= 20": lambda i: i >= 20,
    "w >= 20 AND licence = 'cc-by'": lambda i: i >= 20 and i % 3,
    "licence IN ('cc-by')": lambda i: i % 3,
    "licence <> 'x'": lambda i: i % 3,
    "NOT (licence = 'x')": lambda i: i % 3,
    "licence IS NULL": lambda i: not i % 3,
    "w IS NULL": lambda i: i == 5,
    "w BETWEEN 3 AND 6": lambda i: 3 <= i <= 6,
    "key = 'k7' OR key LIKE 'k1%'": lambda i: i in (7, 1, *range(10, 20)),
    "part = part": lambda i: True,
    "1 = 1": lambda i: True,
    "1 = 2": lambda i: False,
    "w % 2 = 0": lambda i: i % 2 == 0,
    "f < 3": lambda i: i < 6 and i != 4,
}


@pytest.mark.parametrize("predicate", CASES)
def test_null_is_false(version, predicate):
    expected = [i for i in range(30) if CASES[predicate](i) and (i != 5 or "key" in predicate)]
    if predicate in ("w IS NULL", "licence IS NULL", "part = part", "1 = 1"):
        expected = [i for i in range(30) if CASES[predicate](i) or i == 5]
    assert keys(version.where(predicate)) == expected


def test_predicates_narrow(version):
    view = version.where("w >= 10").where("w < 12 OR w = 20").where("w <> 11")
    assert keys(view) == [10, 20]
    assert view.predicate == "((w >= 10) AND (w < 12 OR w = 20)) AND (w <> 11)"


def test_unknown_columns_list_what_there_is(version):
    with refusal(FieldNotFound, what="where('height > 3')", where="d@1", given=["height"]):
        len(version.where("height > 3"))


@pytest.mark.parametrize(
    ("predicate", "given"),
    [
        *((text, text) for text in ("w >", "", "licence >= 3 +", "least()")),
        ("SELECT 1", "SELECT"),
        ("w + licence", ["w + licence"]),
        ("nofunction(w)", "nofunction(...)"),
    ],
)
def test_what_is_no_predicate(version, predicate, given):
    with refusal(FieldNotFound, what=f"where({predicate!r})", given=given):
        len(version.where(predicate))


def test_fields(version):
    assert version.select().fields == ("cls", "x")
    assert version.select("x", "cls", "x").fields == ("x", "cls")
    assert version.select("x").select("cls").fields == ("cls",)
    assert (version.select("cls").mean_sample_bytes, version.select("x").mean_sample_bytes) == (2, 15)
    with refusal(FieldNotFound, what="jpg", where="d@1"):
        version.select("cls", "jpg")


def test_identity(version):
    a, b = version.where("w > 3"), version.where("w > 3").select("cls")
    assert a.id == b.id != version.where("w > 4").id
    assert version.select("cls").id == version.select("x").id
    assert a.identity == version.id
    assert a.id.startswith("w-")
    assert loader.source(a).view is a


def test_spec_opens_it_again(version, root):
    from loader.api.plans import reopen

    view = version.select("cls").where("w > 3")
    again = reopen(loader.Root(root.url), view.spec())
    assert (again.id, again.fields, len(again), again.spec()) == (
        view.id,
        view.fields,
        len(view),
        view.spec(),
    )


def test_ordinals_are_the_samples_tables(version):
    view = version.where("w % 4 = 1")
    frame = version.samples().collect()
    expected = [o for o, w in zip(frame["ordinal"], frame["w"], strict=True) if w is not None and w % 4 == 1]
    assert view.version_ordinals(np.arange(len(view))).tolist() == expected
    assert view.version_ordinals(np.zeros(0, np.int64)).tolist() == []
    assert version.select().version_ordinals(np.arange(3)).tolist() == [0, 1, 2]


def fresh(version, store):
    """The version as another process opens it, through `store`."""
    again = pickle.loads(pickle.dumps(version))  # noqa: S301 - what it just dumped
    again.store = store
    return again


def test_saved_view_is_not_scanned_again(version, stores):
    expected = keys(version.where("w > 3"))
    counting = stores.Counting(version.store)
    view = fresh(version, counting).where("w > 3")
    assert len(view) == len(expected)
    assert counting.calls == {("get", "views"): 1}
    assert keys(view) == expected


def test_empty_view_is_saved_too(version, stores):
    assert len(version.where("w > 99")) == 0
    counting = stores.Counting(version.store)
    assert len(fresh(version, counting).where("w > 99")) == 0
    assert counting.calls == {("get", "views"): 1}


def test_only_the_column_groups_named_are_read(version, stores):
    counting = stores.Counting(version.store)
    len(fresh(version, counting).where("key <> 'k1'"))
    read_for_keys = counting.of("get")
    counting.calls.clear()
    len(fresh(version, counting).where("w > 20"))
    assert (read_for_keys, counting.of("get")) == (3, 4)  # the view itself, shards, then one file per group


def test_view_that_another_process_saved_differently_is_followed(version, stores):
    """Were two polars to disagree about a predicate, all ranks would still train on one selection."""
    other, path = version.where("w > 20"), version.where("w > 10")._path
    len(other)
    table = parse_table(version.store.get(other._path).data, other._path)
    theirs = table_bytes(table, "view", facts={"path": path})

    class Late(stores.Counting):
        """The other's view appears between the look and the save."""

        def put_if_absent(self, key, data):
            self.store.put(key, theirs)
            return self.store.put_if_absent(key, data)

    view = fresh(version, Late(version.store)).where("w > 10")
    assert keys(view) == keys(other)


def test_root_that_may_not_be_written_costs_a_scan(version, stores, caplog):
    class ReadOnly(stores.Counting):
        def put_if_absent(self, key, data):
            raise Forbidden("no")

    with caplog.at_level(logging.WARNING):
        view = fresh(version, ReadOnly(version.store)).where("w > 25")
        assert len(view) == 4
    assert "read-only here" in caplog.text


@pytest.mark.parametrize(("damage", "what"), [(b"", "table"), (b"not parquet", "table"), (None, "path")])
def test_damaged_saved_view_is_corrupt(version, root, damage, what):
    view = version.where("w > 3")
    len(view)
    if damage is None:
        with root.write("small") as writer:
            writer.add("k", {"cls": 1}, metadata={"w": 1})
        small = writer.version.where("w = 1")
        len(small)
        damage = root.store.get(small._path).data
    root.store.put(view._path, damage)
    with refusal(Corrupt, what=what, where=f"{version.store.url}/{view._path}"):
        len(fresh(version, version.store).where("w > 3"))


def test_where_on_dataset_without_metadata(root):
    with root.write("d") as writer:
        writer.add("a", {"cls": 1})
    with refusal(FieldNotFound, what="where('w = 1')", where="d@1", given=["w"]):
        len(writer.version.where("w = 1"))
    assert len(writer.version.where("key = 'a'")) == 1


def test_addresses_without_fields_name_the_keys(version):
    addresses = version.address(np.array([3, 0]), [])
    assert [address.key for address in addresses] == version.keys(np.array([3, 0]))
    assert all(address.fields == {} for address in addresses)
    assert addresses[0].describe() == f"d@1/{addresses[0].part} row 3 sample {addresses[0].key!r}"


def test_flipped_bit_of_a_saved_view_is_named_or_changes_nothing(version):
    """Wherever it lies in the file: in the bits, their checksums, or what Parquet says about them."""
    view = version.where("w > 3 AND w <> 17")
    expected, path = keys(view), view._path
    data = version.store.get(path).data
    refused = 0
    flips = range(0, len(data), 5)
    for at in flips:
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        version.store.put(path, bytes(damaged))
        again = fresh(version, version.store).where(view.predicate)
        try:
            found = keys(again)
        except Corrupt as error:
            refused += path in str(error)
            continue
        assert found == expected, at
    assert refused > len(flips) / 4  # each with the file's name


def test_bits_that_parquet_reads_and_were_not_written_are_refused(version):
    """A file that is whole by its own page checksums, with other bits in it."""
    view = version.where("w > 3")
    len(view)
    table = parse_table(version.store.get(view._path).data, view._path)
    bits = bytearray(table["bits"][0].as_py())
    bits[1] ^= 4
    forged = table.set_column(1, "bits", pa.array([bytes(bits)], pa.binary()))
    version.store.put(view._path, table_bytes(forged, "view"))
    with refusal(Corrupt, what="bits", given=0):
        len(fresh(version, version.store).where("w > 3"))


def test_two_saved_views_exchanged_are_refused(version):
    """Each is whole, and as long as the other: what a saved plan reads is not told by their bits."""
    views = [version.where("w < 4"), version.where("w BETWEEN 4 AND 8 AND w <> 5")]
    assert len({len(view) for view in views}) == 1
    plan = loader.plan({"d": views[0].select("cls")}, seed=1, global_batch=2)
    root = loader.Root(version.store.url)
    plan.save(root)
    first, second = (version.store.get(view._path).data for view in views)
    version.store.put(views[0]._path, second)
    version.store.put(views[1]._path, first)
    for view, other in zip(views, reversed(views), strict=True):
        with refusal(Corrupt, what="path", given=other._path, accepted=view._path):
            len(fresh(version, version.store).where(view.predicate))
    with refusal(Corrupt, what="path", given=views[1]._path, accepted=views[0]._path):
        loader.open_plan(root, plan.hash).sources["d"].view.version_ordinals(np.arange(4))
    for view in views:
        version.store.delete_many([view._path])
    assert keys(fresh(version, version.store).where("w < 4")) == [0, 1, 2, 3]


def test_view_saved_without_its_path_is_read(version):
    view = version.where("w > 3")
    expected = keys(view)
    table = parse_table(version.store.get(view._path).data, view._path)
    assert table_facts(table)["path"] == view._path
    version.store.put(view._path, table_bytes(table, "view"))
    assert keys(fresh(version, version.store).where("w > 3")) == expected


def test_view_saved_without_checksums_is_read(version):
    view = version.where("w > 3")
    expected = keys(view)
    table = parse_table(version.store.get(view._path).data, view._path)
    version.store.put(view._path, table_bytes(table.drop_columns(["crc32c"]), "view"))
    assert keys(fresh(version, version.store).where("w > 3")) == expected


def test_version_brings_the_small_tables_it_has_read(version, stores):
    expected = len(version.parts)
    counting = stores.Counting(version.store)
    assert len(fresh(version, counting).parts) == expected
    assert not counting.calls
