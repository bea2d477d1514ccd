"""Imports and registrations leave out excluded samples of changed files, and what a takedown denies."""

import pytest

import loader
from loader.dataset.log.denies import Target
from loader.dataset.root import root_in_store
from loader.errors import Denied
from loader.storage import open_store
from penstock.formats.importer import ColumnarOptions
from penstock.formats.registration.register import register
from penstock.formats.run_import import import_place
from penstock.upkeep.exclusion import exclude, withdraw
from penstock.upkeep.takedown.takedown_run import run_takedown
from penstock.upkeep.verify.version import verify
from tests.mortal_store import PUTS, killed_runs
from tests.refusals import refusal

BY = {"by": "ann", "reason": "wrong"}


def import_files(root, place, format="files"):
    return import_place(root, format, open_store(str(place)), "notes")


def register_files(root, place):
    return register(root, "files", str(place), "notes")


VERBS = pytest.mark.parametrize("publish", [import_files, register_files], ids=["import", "register"])


def write(folder, **texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def live_keys(root, ref="notes"):
    return sorted(root.open(ref).samples().collect()["key"])


def objects(root):
    return {info.key for info in root.store.list("data/")}


@VERBS
def test_changed_file_of_an_excluded_sample_makes_one_version_without_it(tmp_path, publish):
    place = write(tmp_path / "in", a="a", b="b", c="c")
    with loader.Root(tmp_path / "root") as root:
        publish(root, place)
        record, _ = exclude(root, "notes", ["b"], **BY)
        write(place, b="another b", d="d")
        report = publish(root, place)
        assert (report.new, report.replaced) == (1, 1)
        assert any("stay out" in note for note in report.notes)
        assert [one.number for one in root.versions("notes")] == [1, 2, 3]
        version = root.open("notes")
        assert live_keys(root) == ["a", "c", "d"]
        assert version.manifest["producer"]["exclusions"] == [record.path]
        assert verify(root, "notes", full=publish is import_files).problems == []
        publish(root, place)
        assert len(root.versions("notes")) == 3, "the object is unchanged"
        withdraw(root, "notes", ["b"], reason="fine", by="ben")
        write(place, b="a third b")
        assert publish(root, place).notes == []
        assert live_keys(root) == ["a", "b", "c", "d"]


@VERBS
def test_exclusion_whose_version_was_retired_is_applied_by_the_next_publication(tmp_path, publish):
    place = write(tmp_path / "in", a="a", b="b", c="c")
    with loader.Root(tmp_path / "root") as root:
        publish(root, place)
        exclude(root, "notes", ["b"], **BY)
        root.retire("notes@2", reason="by mistake")
        assert live_keys(root) == ["a", "b", "c"]
        publish(root, place)
        assert live_keys(root, "notes@3") == ["a", "c"]
        root.retire("notes@3", reason="by mistake")
        write(place, d="d")
        publish(root, place)
        assert live_keys(root, "notes@4") == ["a", "c", "d"]


def kills(tmp_path, publish, place, change, every):
    """Yield (root, k, side) after each killed publication. change(is_new): writes the first or second files."""

    def make_store(name):
        store = open_store(f"memory://{tmp_path.name}/{name}")
        root = root_in_store(store)
        change(False)
        publish(root, place)
        exclude(root, "notes", ["b"], **BY)
        change(True)
        return store

    def run(store):
        publish(root_in_store(store), place)

    for store, k, when in killed_runs(run, make_store, verbs=PUTS, at=range(1, 99, every)):
        yield root_in_store(store), k, when


@VERBS
def test_killed_publication_leaves_no_version_with_an_excluded_sample(tmp_path, publish):
    place = write(tmp_path / "in", a="a", c="c")

    def change(is_new):
        write(place, b="another b" if is_new else "b")

    for root, k, when in kills(tmp_path, publish, place, change, 2):
        versions = [record.name for record in root.versions("notes")]
        assert all("b" not in live_keys(root, name) for name in versions[1:]), (k, when)
        publish(root, place)
        assert (len(root.versions("notes")), live_keys(root)) == (3, ["a", "c"]), (k, when)


@VERBS
def test_sample_that_is_excluded_after_a_kill_stays_out_of_the_repeated_publication(tmp_path, publish):
    """The repeated run has the killed run's folder, in which it finds that run's exclusions."""
    place = write(tmp_path / "in", a="a", d="d")

    def change(is_new):
        texts = {"b": "another b", "c": "another c"} if is_new else {"b": "b", "c": "c"}
        write(place, **texts)

    for root, k, when in kills(tmp_path, publish, place, change, 3):
        exclude(root, "notes", ["c"], by="ben", reason="blurred")
        publish(root, place)
        assert live_keys(root) == ["a", "d"], (k, when)
        assert verify(root, "notes").problems == []


TARGETS = {
    "key": lambda place: Target(kind="raw", value="b.txt"),
    "URI": lambda place: Target(kind="raw", value=f"{place}/b.txt"),
    "sample": lambda place: Target(kind="sample", value="b", dataset="notes"),
}
CASES = [(kind, is_known) for kind in TARGETS for is_known in (True, False)]
CASES.remove(("URI", True))  # an import stores keys only, so that a URI names none of its samples


@pytest.mark.parametrize(("kind", "is_known"), CASES)
def test_file_that_is_taken_down_is_neither_copied_nor_published(tmp_path, kind, is_known):
    place = write(tmp_path / "in", a="a", **({"b": "b"} if is_known else {}))
    with loader.Root(tmp_path / "root") as root:
        import_files(root, place)
        write(place, b="b")
        deny = root.log.deny((TARGETS[kind](place),), "ticket", "desk")
        run_takedown(root, deny.n, apply=True)
        versions, there = len(root.versions("notes")), objects(root)
        for _ in range(2):
            assert import_files(root, place).name == f"notes@{versions}"
            assert objects(root) == there
        write(place, b="another b", c="c")
        report = import_files(root, place)
        assert (report.new, report.replaced) in ((1, 0), (2, 0), (1, 1), (0, 1))
        assert live_keys(root) == ["a", "c"]
        new = objects(root) - there
        assert not any(b"another b" in root.store.get(path).data for path in new)
        assert import_files(root, place).name == f"notes@{versions + 1}"


@VERBS
def test_new_file_that_is_taken_down_by_name_is_left_alone(tmp_path, publish):
    place = write(tmp_path / "in", a="a")
    with loader.Root(tmp_path / "root") as root:
        publish(root, place)
        root.log.deny((Target(kind="raw", value="b.txt"),), "ticket", "desk")
        write(place, b="b")
        report = publish(root, place)
        assert (report.taken_down, report.new, len(root.versions("notes"))) == (1, 0, 1)
        write(place, c="c")
        assert publish(root, place).taken_down == 1
        assert live_keys(root) == ["a", "c"]


@VERBS
def test_source_of_taken_down_files_only_is_refused(tmp_path, publish):
    place = write(tmp_path / "in", a="a")
    with loader.Root(tmp_path / "root") as root:
        root.create()
        root.log.deny((Target(kind="raw", value="a.txt"),), "ticket", "desk")
        with refusal(Denied, what="takedowns", where=f"{tmp_path}/in", given="the 1 objects"):
            publish(root, place)
        assert not objects(root)


def test_row_that_is_taken_down_is_not_copied(tmp_path):
    place, options = tmp_path / "in", ColumnarOptions(key="name", fields={"text": ""})
    place.mkdir()
    with loader.Root(tmp_path / "root") as root:
        root.create()
        root.log.deny((Target(kind="sample", value="b", dataset="notes"),), "ticket", "desk")
        (place / "1.jsonl").write_text('{"name": "a", "text": "x"}\n{"name": "b", "text": "x"}\n')
        import_place(root, "jsonl", open_store(str(place)), "notes", options=options)
        assert live_keys(root) == ["a"]
        assert root.open("notes").manifest["n_rows"] == 1
        (place / "2.jsonl").write_text('{"name": "b", "text": "x"}\n')
        for _ in range(2):
            import_place(root, "jsonl", open_store(str(place)), "notes", options=options)
            assert len(root.versions("notes")) == 1
