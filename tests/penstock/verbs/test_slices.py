"""`penstock slice`, and what exclusions, exports, annotations, explanations and differences do with a slice."""

import json

import pyarrow.parquet as pq
import pytest

import loader
from penstock.exclusion_records import records

WHO = ("--by", "ada", "--why", "lens cap")


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("demo", part_samples=5) as writer:
        for i in range(12):
            writer.add(f"k{i:02d}", {"cls": i}, {"w": i})
    return root


@pytest.fixture
def covers(root, cli, tmp_path):
    """The slice demo/covers of three samples."""
    file = tmp_path / "keys.txt"
    file.write_text("k03\nk07\nk09\n")
    done = cli("slice", "save", "demo@1", "covers", "--from", file, *WHO, "--page", "http://x", root=root.url)
    assert (done.code, done.err) == (0, "")
    assert done.out == "demo/covers number 1: 3 samples of demo@1 (slices/demo/covers/000001.json)\n"
    return file


def test_slices_are_saved_listed_shown_compared_and_removed(root, covers, cli):
    done = cli("slice", "save", "demo", "high", "--where", "w >= 8", *WHO, "--json", root=root.url)
    assert (done.json["kind"], done.json["n_samples"], done.json["where"]) == ("rule", 4, "w >= 8")
    names = "format name n dataset version version_id kind sha256 where n_samples by why page at_us removed"
    assert sorted(done.json) == sorted(names.split())
    assert done.json == json.loads(root.store.get("slices/demo/high/000001.json").data)

    listed = cli("slice", "ls", "demo", "--json", root=root.url).json
    assert [(one["name"], one["n"], one["by"]) for one in listed["slices"]] == [
        ("covers", 1, "ada"),
        ("high", 1, "ada"),
    ]
    assert listed["damaged"] == {}
    text = cli("slice", "ls", root=root.url).out
    assert "demo/covers" in text
    assert "lens cap" in text

    root.exclude("demo", ["k07"], reason="blurred")
    shown = cli("slice", "show", "demo/covers", "--json", root=root.url).json
    assert (shown["in"], shown["n_in"], shown["gone"], shown["numbers"]) == ("demo@2", 2, ["k07"], [1])
    assert cli("slice", "show", "demo/covers", root=root.url).out.splitlines() == [
        "demo/covers number 1 of 1",
        "list: 3 listed samples",
        cli("slice", "show", "demo/covers", root=root.url).out.splitlines()[2],
        "http://x",
        "demo@2 has 2 of them, 1 are gone",
        "  gone     k07",
    ]
    covers.write_text("k03\nk04\n")
    cli("slice", "save", "demo", "covers", "--from", covers, *WHO, root=root.url)
    difference = cli("slice", "diff", "demo/covers", "--json", root=root.url).json
    assert (difference["added"], difference["removed"]) == (["k04"], ["k09"])
    assert "  added    k04" in cli("slice", "diff", "demo/covers", "1", "2", root=root.url).out

    done = cli("slice", "rm", "demo/covers", "--by", "bo", "--why", "mistake", root=root.url)
    assert done.code == 0
    assert "covers" not in cli("slice", "ls", root=root.url).out
    shown = cli("slice", "show", "demo/covers", root=root.url).out
    assert "removed by bo" in shown
    assert cli("slice", "show", "demo/covers", "--n", "2", "--json", root=root.url).json["n_samples"] == 2
    assert cli("slice", "rm", "demo/covers", *WHO, root=root.url).code == 2


def test_damaged_slice_is_named_beside_the_others(root, covers, cli):
    cli("slice", "save", "demo", "high", "--where", "w >= 8", *WHO, root=root.url)
    root.store.put("slices/demo/covers/000001.json", b"{")
    done = cli("slice", "ls", root=root.url)
    assert done.code == 1
    assert "demo/high" in done.out
    assert "slices/demo/covers/000001.json is not a record of a slice" in done.out
    assert cli("slice", "show", "demo/covers", root=root.url).code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("slice", "save", "demo", "x", *WHO), "pass words, or --where SQL"),
        (("slice", "save", "demo", "X", "--where", "w > 1", *WHO), "cannot be a slice's name"),
        (("slice", "save", "demo", "x", "--where", "SELECT 1", *WHO), "is refused"),
        (("slice", "show", "covers"), "write DATASET/NAME"),
        (("slice", "show", "demo/nope"), "has no slice demo/nope"),
        (("slice", "diff", "demo/covers", "1"), "pass two"),
        (("slice", "diff", "demo/covers"), "two are compared"),
        (("exclude", "demo", "--slice", "nope"), "has no slice demo/nope"),
        (("exclude", "demo", "k01", "--slice", "covers"), "leave out keys"),
        (("exclude", "demo", "--slice", "covers", "--page", "http://x"), "leave out keys"),
        (("exclude", "demo", "--list", "--slice", "covers"), "--list takes only a dataset"),
        (("annotate", "demo", "x", "--author", "ada"), "pass --from FILE, or --set"),
        (("annotate", "demo", "x", "--author", "ada", "--set", "w"), "write COLUMN=SQL"),
    ],
)
def test_arguments_that_no_slice_takes(root, covers, cli, arguments, words):
    done = cli(*arguments, root=root.url)
    assert done.code == 2
    assert words in done.err


def test_exclusion_of_a_slice_is_named_by_explain_and_diff(root, covers, cli):
    version = root.open("demo@1")
    plan = loader.plan({"demo": version}, seed=3, global_batch=12)
    plan.save(root)
    rest = loader.plan({"demo": version.without("covers")}, seed=3, global_batch=4)
    rest.save(root)
    before = cli("explain", plan.hash, "--step", "0", "--json", root=root.url).json
    assert [(one["excluded"], one["slices"]) for one in before] == [(None, [])] * 12

    done = cli("exclude", "demo@1", "--slice", "covers", "--json", root=root.url)
    assert (done.code, done.json["keys"], done.json["name"]) == (0, ["k03", "k07", "k09"], "demo@2")
    assert (done.json["slice"], done.json["gone"]) == ("demo/covers", [])
    (record,) = records(root.store, "demo")
    assert (record.reason, record.by) == ("slice demo/covers: lens cap", "ada")
    assert record.page == "slices/demo/covers/000001.json"
    again = cli("exclude", "demo@latest", "--slice", "demo/covers", root=root.url)
    assert (again.code, len(root.versions("demo"))) == (0, 2)
    assert "gone" not in again.out

    excluded = {"version": "demo@2", "by": "ada", "reason": "lens cap", "slice": "demo/covers"}
    after = {
        slot["key"]: slot for slot in cli("explain", plan.hash, "--step", 0, "--json", root=root.url).json
    }
    assert {key for key, slot in after.items() if slot["excluded"] == excluded} == {"k03", "k07", "k09"}
    assert sum(slot["excluded"] is None for slot in after.values()) == 9
    slot = after["k07"]["slot"]
    text = cli("explain", plan.hash, "--step", 0, "--slot", slot, root=root.url).out
    assert text.endswith('  excluded since demo@2: slice demo/covers, ada: "lens cap"\n')
    assert "demo: demo@1 without slice covers 1" in cli("plans", "ls", root=root.url).out
    explained = cli("explain", rest.hash, "--step", "0", "--json", root=root.url).json
    assert {tuple(one["slices"]) for one in explained} == {("demo/covers",)}
    assert "  slices      demo/covers\n" in cli("explain", rest.hash, "--step", "0", root=root.url).out + "\n"

    assert "slice demo/covers: lens cap" in cli("card", "demo@2", root=root.url).out
    changes = cli("diff", "demo@1", "demo@2", root=root.url)
    assert "slices    excluded: demo/covers" in changes.out
    assert cli("diff", "demo@1", "demo@2", "--json", root=root.url).json["slices"] == ["demo/covers"]


def test_explain_names_exclusions_without_a_slice_and_forgets_withdrawn_ones(root, cli):
    plan = loader.plan({"demo": root.open("demo@1")}, seed=3, global_batch=12)
    plan.save(root)
    cli("exclude", "demo", "k05", "--reason", "slice of\nbread", "--by", "bo", root=root.url)
    with root.write("demo") as writer:
        writer.add("k90", {"cls": 1}, {"w": 1})

    def exclusion_slots():
        body = cli("explain", plan.hash, "--step", "0", "--json", root=root.url).json
        return {one["key"]: one["excluded"] for one in body if one["excluded"] is not None}

    expected = {"version": "demo@2", "by": "bo", "reason": "slice of\nbread", "slice": None}
    assert exclusion_slots() == {"k05": expected}
    text = cli("explain", plan.hash, "--step", "0", root=root.url).out
    assert 'excluded since demo@2: bo: "slice of bread"' in text.replace("\\n", " ")
    cli("exclude", "demo", "k05", "--withdraw", "--reason", "fine", "--by", "bo", root=root.url)
    assert exclusion_slots() == {"k05": expected}, "no version has it again yet"
    with root.write("demo") as writer:
        writer.add("k05", {"cls": 5}, {"w": 5})
    assert exclusion_slots() == {}


def test_samples_that_a_version_lacks_are_named_by_an_exclusion(root, covers, cli):
    root.exclude("demo", ["k07"], reason="blurred")
    done = cli("exclude", "demo", "--slice", "covers", "--by", "bo", "--reason", "again", root=root.url)
    assert done.code == 0
    assert "  gone: k07" in done.out
    (record,) = records(root.store, "demo")
    assert (record.keys, record.by, record.reason) == (("k03", "k09"), "bo", "slice demo/covers: again")
    done = cli("exclude", "demo", "--slice", "covers", *WHO[:2], "--reason", "third", root=root.url)
    assert done.code == 2
    assert (
        "no sample of the slice demo/covers: nothing was excluded. Gone are 'k03', 'k07', 'k09'" in done.err
    )


def test_slice_is_exported(root, covers, cli, tmp_path):
    target = tmp_path / "out"
    done = cli("export", "demo", "parquet", target, "--slice", "covers", "--where", "w > 3", root=root.url)
    assert (done.code, done.err) == (0, "")
    assert sum(pq.read_metadata(file).num_rows for file in target.glob("**/*.parquet")) == 2
    covers.write_text("k03\n")
    cli("slice", "save", "demo", "covers", "--from", covers, *WHO, root=root.url)
    again = cli("export", "demo", "parquet", target, "--slice", "covers", "--where", "w > 3", root=root.url)
    assert again.code == 2
    assert "nothing of demo@1 is to be exported: no sample of it is in the slice covers" in again.err
    again = cli("export", "demo", "parquet", target, "--slice", "covers", root=root.url)
    assert again.code == 2
    assert "holds an export of" in again.err


def test_column_is_computed_by_annotate(root, cli):
    done = cli(
        "annotate", "demo", "sizes", "--set", "small = w < 4 OR w = 9", "--author", "ada", root=root.url
    )
    assert (done.code, done.err) == (0, "")
    version = root.open("demo@2")
    small = version.where("small")
    assert len(small) == 5
    assert len(version.where("NOT small")) == 7
