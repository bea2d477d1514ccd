"""Costs of pages: requests and bytes do not grow with the samples of a version or the steps of a run."""

from collections import Counter

import pytest

import loader
from loader.dataset.tables import parquet, table_rows
from loader.dataset.versions import samples_table
from loader.dataset.versions.samples_table import scan_samples
from loader.dataset.writing import run_samples
from penstock.view.inspect.sample_record import read_field, sample_record
from penstock.view.inspect.slot_record import slot_record
from penstock.view.inspect.step_record import step_record
from penstock.view.open_data import OpenData
from tests.view.conftest import BATCH, photo, train
from tests.view.filtered_pages import read_page
from tests.view.recipes import plain

SIZES = (60, 1_800)
ROW_GROUP = 30
PICTURE = photo(1)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Folder of a root for each size, with a run of more steps; tables of samples have row groups of 30 rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "HASHED_FROM_ROWS", ROW_GROUP)
        patch.setattr(run_samples, "HASHED_FROM_ROWS", ROW_GROUP)
        patch.setattr(parquet.put_table, "__defaults__", (ROW_GROUP,))
        patch.setattr(run_samples.put_rows, "__defaults__", (ROW_GROUP,))
        patch.setattr(table_rows, "WHOLE_BELOW_BYTES", 0)
        yield write_folders(tmp_path_factory)


def write_folders(tmp_path_factory):
    folders = []
    for n in SIZES:
        folders.append(tmp_path_factory.mktemp("costs") / "root")
        with loader.Root(folders[-1]) as root:
            with root.write("photos") as writer:
                for i in range(n):
                    source = {"raw_uri": f"s3://raw/{i:05d}", "run_id": "r"}
                    fields = {"jpg": PICTURE, "cls": i % 3}
                    writer.add(f"p/{i:05d}", fields, metadata={"label": "cat", "size": i % 7}, source=source)
            view = root.open("photos@1").select("jpg", "cls")
            plan = loader.plan({"photos": view}, seed=3, global_batch=BATCH, allow_repeats=True)
            train(root, plan, "one", recipe=plain, steps=2 + n // 60)
    return folders


class Counted:
    """Counts answered requests by verb, and bytes by the kind of object.

    keys: of the answered requests, in order. attempted: of all requests, writes and missing objects included.
    """

    def __init__(self, store):
        self.store, self.url = store, store.url
        self.requests, self.nbytes = Counter(), Counter()
        self.keys: list[str] = []
        self.attempted: list[str] = []

    def __getattr__(self, name):
        verb = getattr(self.store, name)

        def call(*given, **named):
            key = given[0] if given else ""
            self.attempted.append(str(key))
            found = verb(*given, **named)
            if name in ("get", "get_range", "get_ranges", "list", "head") and not str(key).startswith(
                "leases"
            ):
                self.requests[name] += 1
                self.keys.append(str(key))
            blobs = found if name == "get_ranges" else [found] if name in ("get", "get_range") else []
            kinds = [kind for kind in ("trails/", "samples-") if kind in str(key)]
            kind = kinds[0] if kinds else "others"
            if kind == "samples-" and name == "get_range":
                kind = "footers"
            self.nbytes[kind] += sum(len(blob.data) for blob in blobs)
            return found

        return call


def cost(folder, look):
    """Requests and bytes of a look by a viewer that was just started."""
    with loader.Root(folder) as root:
        root._use(store := Counted(root.store))
        opened = OpenData(root)
        look(opened)
        opened.close()
        return store.requests, store.nbytes


def first_paint(opened):
    version = opened.version("photos", 1)
    record = read_page(version)
    (label, size) = record.facets
    assert (label.is_counted, label.values[0].n, size.n) == (True, len(version), len(version))
    for row in record.rows[:24]:
        assert read_field(version, row.ordinal, "jpg") == PICTURE


def load_facets(opened):
    version = opened.version("photos", 1)
    record = read_page(version, facet_names=("label", "size"), cache=opened.columns)
    assert [one.column for one in record.facets if one.is_counted] == ["label", "size"]


def another_page(opened):
    version = opened.version("photos", 1)
    record = read_page(version, first=len(version) - 30)
    assert len(record.rows) == 30


def a_step(opened):
    training = opened.training("one")
    batch, trouble = opened.batch("one", 2, 0, 1)
    assert len(step_record(training, batch, None, trouble).slots) == BATCH


def a_sample(opened):
    record = sample_record(opened.version("photos", 1), 7)
    assert (record.columns["label"], record.provenance["raw_uri"]) == ("cat", f"s3://raw/{record.key[2:]}")


def an_explained_slot(opened):
    plan = opened.training("one").plan(2)
    (found,) = loader.explain(plan, 2, slot=1)
    assert found.provenance == {"raw_uri": f"s3://raw/{found.address.key[2:]}", "run_id": "r"}


def a_slot(opened):
    training = opened.training("one")
    values, trouble = opened.slot("one", 2, 1)
    assert slot_record(training, values, trouble).key


@pytest.mark.parametrize(
    "look", [first_paint, load_facets, another_page, a_slot, a_sample, an_explained_slot]
)
def test_page_of_many_costs_as_many_requests_as_one_of_few(roots, look):
    few, many = (cost(folder, look)[0] for folder in roots)
    assert many == few


@pytest.mark.parametrize("look", [first_paint, another_page, a_slot, a_sample, an_explained_slot])
def test_page_of_many_reads_the_same_media_and_tables(roots, look):
    """What grows is the index of a part, up to a part's size, the footers of tables, and the trail of a training."""
    few, many = (cost(folder, look)[1] for folder in roots)
    one, other = (sum(path.stat().st_size for path in folder.rglob("*.index.parquet")) for folder in roots)
    opened = {first_paint: 1, another_page: 1, a_sample: 1, an_explained_slot: 1}.get(
        look, 2
    )  # by plan and by values
    assert many["others"] - few["others"] <= opened * (other - one) + 4000  # statistics have more digits
    # Other samples, whose row groups are about as large.
    assert abs(many["samples-"] - few["samples-"]) <= few["samples-"] / 4
    footers = sum(parquet.footer_nbytes(path.read_bytes()) for path in roots[1].rglob("samples-*.parquet"))
    assert many["footers"] <= 3 * footers
    assert bool(many["samples-"]) is (look in (a_slot, a_sample, an_explained_slot))


def test_step_reads_at_most_a_row_group_of_a_table_for_each_sample(roots):
    few, many = (cost(folder, a_step) for folder in roots)
    assert few[0]["get_range"] == many[0]["get_range"]
    assert many[0]["get_ranges"] == few[0]["get_ranges"]
    largest = [
        max(path.stat().st_size for path in roots[0].rglob(f"samples-{group}*.parquet"))
        for group in ("keys", "metadata")
    ]
    assert largest[0] < many[1]["samples-"] <= BATCH * sum(largest)


def test_filter_reads_each_table_once(roots):
    def check_filter(opened):
        record = read_page(opened.version("photos", 1), where="label = 'cat'", sort="-key")
        assert record.rows[0].columns == {"label": "cat"}
        assert [row.key for row in record.rows] == [f"p/{59 - i:05d}" for i in range(60)]

    requests, nbytes = cost(roots[0], check_filter)
    tables = [path.stat().st_size for path in roots[0].rglob("*samples-*.parquet")]
    assert len(tables) == 2
    assert nbytes["samples-"] == sum(tables)
    assert requests["get"] == 2 + cost(roots[0], first_paint)[0]["get"]


def test_large_tables_are_read_by_row_groups(roots, monkeypatch):
    """Columns of a table that does not fit in memory: the same values, and no request for the whole table."""
    monkeypatch.setattr(table_rows, "GROUPS_AT_ONCE", 4)
    whole = cost(roots[1], load_facets)
    with loader.Root(roots[1]) as root:
        values = scan_samples(root.open("photos@1"), ["label", "size", "key"]).collect()
        monkeypatch.setattr(samples_table, "WHOLE_BELOW_BYTES", 0)
        assert scan_samples(root.open("photos@1"), ["label", "size", "key"]).collect().equals(values)
    requests, nbytes = cost(roots[1], load_facets)
    n_groups = SIZES[1] // ROW_GROUP
    assert requests["get"] == whole[0]["get"] - 2
    assert requests["get_ranges"] - whole[0]["get_ranges"] == 2 * n_groups // 4
    assert nbytes["samples-"] <= whole[1]["samples-"]


def test_facets_read_each_table_once(roots):
    """The second page, a click, another order and other columns read nothing: what they need is cached."""

    def click_facet(opened):
        load_facets(opened)
        version = opened.version("photos", 1)
        (label, size) = read_page(version, facet_names=("size",), cache=opened.columns).facets
        terms = (label.values[0].where, size.bins[2].where)
        record = read_page(
            version, terms=terms, sort="-size", columns=("label", "size"), cache=opened.columns
        )
        assert record.n_found > 0

    tables = [path.stat().st_size for path in roots[0].rglob("*samples-*.parquet")]
    requests, nbytes = cost(roots[0], click_facet)
    assert nbytes["samples-"] == sum(tables)
    assert requests["get"] == len(tables) + cost(roots[0], first_paint)[0]["get"]
