"""Costs of pages: requests and bytes do not grow with the samples of a version or the steps of a run."""

from collections import Counter

import pytest

import loader
from penstock.view.inspect.sample_record import stored
from penstock.view.inspect.slot_record import slot_record
from penstock.view.inspect.step_record import step_record
from penstock.view.inspect.version_record import version_record
from penstock.view.open_data import OpenData
from tests.view.conftest import BATCH, photo, train
from tests.view.recipes import plain

SIZES = (60, 1_800)
PICTURE = photo(1)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Folder of a root for each size, with a run of more steps."""
    folders = []
    for n in SIZES:
        folders.append(tmp_path_factory.mktemp("costs") / "root")
        with loader.Root(folders[-1]) as root:
            with root.write("photos") as writer:
                for i in range(n):
                    writer.add(f"p/{i:05d}", {"jpg": PICTURE, "cls": i % 3}, metadata={"label": "cat"})
            view = root.open("photos@1").select("jpg", "cls")
            plan = loader.plan({"photos": view}, seed=3, global_batch=BATCH, allow_repeats=True)
            train(root, plan, "one", recipe=plain, steps=2 + n // 60)
    return folders


class Counted:
    """Counts requests by verb, and bytes by the kind of object."""

    def __init__(self, store):
        self.store, self.url = store, store.url
        self.requests, self.nbytes = Counter(), Counter()

    def __getattr__(self, name):
        verb = getattr(self.store, name)

        def call(*given, **named):
            found = verb(*given, **named)
            key = given[0] if given else ""
            if name in ("get", "get_range", "get_ranges", "list", "head") and not str(key).startswith(
                "leases"
            ):
                self.requests[name] += 1
            blobs = found if name == "get_ranges" else [found] if name in ("get", "get_range") else []
            growing = [kind for kind in ("trails/", "samples-keys") if kind in str(key)]
            self.nbytes[growing[0] if growing else "others"] += sum(len(blob.data) for blob in blobs)
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
    record = version_record(version)
    for row in record.rows[:24]:
        assert stored(version, row.ordinal, "jpg") == PICTURE


def another_page(opened):
    version = opened.version("photos", 1)
    record = version_record(version, first=len(version) - 30)
    assert len(record.rows) == 30


def a_step(opened):
    training = opened.training("one")
    batch, trouble = opened.batch("one", 2, 0, 1)
    assert len(step_record(training, batch, None, trouble).slots) == BATCH


def a_slot(opened):
    training = opened.training("one")
    values, trouble = opened.slot("one", 2, 1)
    assert slot_record(training, values, trouble).key


@pytest.mark.parametrize("look", [first_paint, another_page, a_step, a_slot])
def test_a_page_of_many_costs_as_many_requests_as_one_of_few(roots, look):
    few, many = (cost(folder, look)[0] for folder in roots)
    assert many == few


@pytest.mark.parametrize("look", [first_paint, another_page, a_step, a_slot])
def test_a_page_of_many_reads_the_same_media_and_tables(roots, look):
    """What grows is the index of a part, up to a part's size, and of trainings their trail and the keys' tables."""
    few, many = (cost(folder, look)[1] for folder in roots)
    one, other = (sum(path.stat().st_size for path in folder.rglob("*.index.parquet")) for folder in roots)
    opened = 2 if look in (a_step, a_slot) else 1  # by plan and by values
    assert many["others"] - few["others"] <= opened * (other - one) + 4000  # statistics have more digits
    if opened == 1:
        assert set(many) == {"others"}
