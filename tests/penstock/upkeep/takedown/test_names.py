"""Names of what is taken down: they go from everywhere, and nobody else's are touched, though one holds the other."""

import hashlib
import json

import pyarrow as pa
import pytest

import loader
from loader.dataset.log.denies import Target
from loader.dataset.log.state import Deny
from loader.dataset.tables.parquet import TableFile, get_table, put_table
from penstock.denied.cells import scrub, scrub_json
from penstock.denied.hashed_names import dataset_marks
from penstock.formats.files_beside import files_beside
from penstock.stages import StageRecord, Upstream, append_record, current_record
from penstock.text import markdown_table
from penstock.upkeep.takedown.raw_objects import RawDeletion
from penstock.upkeep.takedown.takedown_run import run_takedown
from penstock.upkeep.verify.version import verify
from tests.penstock.upkeep.takedown.test_raw import without_disk

SECRET = "ZQALICEZQ"
DENY = Deny(n=1, hashes=(), scope="subject", salt="5a" * 16)


def source(name, subject, **more):
    return {
        "raw_key": f"{name}.jpg",
        "raw_uri": f"/landing/{name}.jpg",
        "source_key": name,
        "unit_id": f"unit/{name}",
        "subject": subject,
        **more,
    }


def write(root, dataset, samples):
    """samples: key -> (columns, provenance)."""
    with root.write(dataset) as writer:
        for key, (columns, where) in samples.items():
            writer.add(key, {"txt": f"<{key}>"}, columns, where)
    return writer.version


def rows(root, dataset):
    """key -> everything that is told of a live sample, but where it lies."""
    frame = root.open(dataset).samples().collect()
    return {row["key"]: row for row in frame.drop("ordinal", "part", "row").to_dicts()}


def finish_takedown(kit, root, n):
    """Run, collected and proved; then run again, which finds nothing to do."""
    ran = kit.take_down(root, n)
    kit.sweep(root)
    again = kit.take_down(root, n)
    assert (again.new, again.retired, again.touched) == ([], [], [])
    proof = kit.prove(root, n)
    return ran, [one for one in proof["places"] if not one["clean"] and one["check"] != "raw"]


def bobs(root):
    samples = {name: ({"near_of": None}, source(name, name[:-2])) for name in ("bob/1", "bob-smith/1")}
    samples["bob-smith/2"] = ({"near_of": "bob-smith/1"}, source("bob-smith/2", "bob-smith"))
    write(root, "photos", samples)


def test_whose_name_begins_so_keeps_it(kit, root):
    """Every column of theirs; and a takedown of them finds them."""
    bobs(root)
    before = rows(root, "photos")
    ran, left = finish_takedown(kit, root, kit.deny(root, Target(kind="subject", value="bob")))
    assert ran.samples == {"photos": 1}
    assert rows(root, "photos") == {key: row for key, row in before.items() if key != "bob/1"}
    assert left == []
    m = kit.deny(root, Target(kind="raw", value="bob-smith/1.jpg"))
    ran, left = finish_takedown(kit, root, m)
    assert (ran.samples, left) == ({"photos": 1}, [])
    assert kit.found(root, "<bob-smith/1>") == []
    assert rows(root, "photos")["bob-smith/2"]["near_of"] is None


def test_what_somebody_else_is_called_is_not_theirs_alone(kit, root):
    """The key of the one is also that of the raw object that both were cut of, and somebody's subject."""
    write(
        root,
        "clips",
        {
            "video7": ({}, {**source("video7", "x"), "raw_key": "video7"}),
            "video7/2": ({}, {**source("video7/2", "x"), "raw_key": "video7"}),
            "other": ({}, source("other", "video7")),
        },
    )
    raw = pa.table({"uri": ["/landing/video7"], "key": ["video7"], "label": ["cat"]})
    put_table(root.store, "tables/clips/raw_objects/1/x.parquet", raw, "raw_objects")
    before = rows(root, "clips")
    _, left = finish_takedown(
        kit, root, kit.deny(root, Target(kind="sample", value="video7", dataset="clips"))
    )
    assert rows(root, "clips") == {key: before[key] for key in ("video7/2", "other")}
    assert left == []
    assert [info.key for info in root.store.list("tables/")] == ["tables/clips/raw_objects/1/x.parquet"]


def test_subject_that_is_called_as_somebodys_raw_object(kit, root):
    """Which was landed and is not cut yet: its row stays, also when nothing tells any more whose the name was."""
    write(root, "clips", {"k1": ({}, source("k1", "rose")), "k2": ({}, source("k2", "bob"))})
    raw = pa.table({"uri": ["/landing/rose", "/landing/k1.jpg"], "key": ["rose", "k1.jpg"]})
    put_table(root.store, "tables/clips/raw_objects/1/x.parquet", raw, "raw_objects")
    _, left = finish_takedown(kit, root, kit.deny(root, Target(kind="subject", value="rose")))
    assert left == []
    (info,) = root.store.list("tables/clips/raw_objects/")
    facts = TableFile(path=info.key, nbytes=info.nbytes, sha256=_sha256(root, info.key), n_rows=1)
    assert get_table(root.store, facts)["key"].to_pylist() == ["rose"]


def _sha256(root, path):
    return hashlib.sha256(root.store.get(path).data).hexdigest()


def test_raw_object_that_a_damaged_address_may_mean_stays(kit, root):
    """An earlier release took names out of the midst of others' addresses."""
    write(root, "photos", {"b1": ({}, source("b1", "x", raw_uri="/landing/(taken down)-smith/1.jpg"))})
    write(
        root,
        "clips",
        {
            "k1": ({}, source("k1", "y", raw_uri="/landing/bob-smith/1.jpg")),
            "k2": ({}, source("k2", "y", raw_uri="/landing/bob-smith/2.jpg")),
            "k3": ({}, source("k3", "z")),
        },
    )
    deleted = []
    n = kit.deny(root, Target(kind="subject", value="y"))
    ran = run_takedown(
        root,
        n,
        apply=True,
        raw=RawDeletion(deleted.append, files_beside, without_disk),
        raw_below=["/landing"],
    )
    assert (deleted, ran.shared) == (["/landing/bob-smith/2.jpg"], ["/landing/bob-smith/1.jpg"])


def cut_of_one(root):
    """v/1 in a version and v/9 in a part that waits, both of v.mp4; the part, and its units' record."""
    where = {
        "raw_uri": "/landing/v.mp4",
        "raw_key": "v.mp4",
        "source_key": "v.mp4",
        "raw_sha256": "ab" * 32,
        "subject": "bob",
    }
    write(root, "clips", {"v/1": ({}, {**where, "unit_id": "u1"}), "c": ({}, {"subject": "carol"})})
    txn = root.begin("clips")
    part = loader.write_part(root, txn, [("v/9", {"txt": "z"}, {}, {**where, "unit_id": "u9"})])
    units = pa.table({"key": ["v/9"], "unit_id": ["u9"], "raw_key": ["v.mp4"]})
    file = put_table(root.store, "tables/clips/units/b/x.parquet", units, "units")
    record = StageRecord(
        dataset="clips",
        stage="units",
        partition="b",
        verdict="published",
        run_id="r",
        code_version="1",
        fingerprint="f",
        files={"units": file},
        body={"txn": txn, "parts": [{"part": part.to_json()}]},
    )
    return append_record(root.store, record)


def test_waiting_sample_keeps_its_raw_object(kit, root):
    """Its provenance, its row among the units, and its raw object at its source."""
    cut_of_one(root)
    n = kit.deny(root, Target(kind="sample", value="v/1", dataset="clips"))
    deleted = []
    assert run_takedown(
        root,
        n,
        apply=True,
        raw=RawDeletion(deleted.append, files_beside, without_disk),
        raw_below=["/landing"],
    ).shared == ["/landing/v.mp4"]
    record = current_record(root.store, "clips", "units", "b")
    assert get_table(root.store, record.files["units"])["key"].to_pylist() == ["v/9"]
    root.publish("clips", [loader.Part.from_json(record.body["parts"][0]["part"])])
    row = rows(root, "clips")["v/9"]
    assert (row["raw_uri"], row["raw_key"], row["source_key"]) == ("/landing/v.mp4", "v.mp4", "v.mp4")
    run_takedown(
        root,
        n,
        apply=True,
        raw=RawDeletion(deleted.append, files_beside, without_disk),
        raw_below=["/landing"],
    )
    assert deleted == []
    assert finish_takedown(kit, root, n)[1] == []


def test_part_that_waits_of_somebody_who_is_called_nearly_so(kit, root):
    write(root, "photos", {"bob/1": ({}, source("bob/1", "bob")), "carol": ({}, source("carol", "carol"))})
    txn = root.begin("photos")
    waits = ("bob-smith/9", {"txt": "z"}, {}, source("bob-smith/9", "bob-smith"))
    part = loader.write_part(root, txn, [waits])
    n = kit.deny(root, Target(kind="subject", value="bob"))
    kit.take_down(root, n)
    root.publish("photos", [part])
    assert finish_takedown(kit, root, n)[1] == []
    assert sorted(rows(root, "photos")) == ["bob-smith/9", "carol"]


def test_records_keep_their_way(kit, root):
    """A subject that is called as a batch begins, as a stage, or as a field of a record."""
    subjects = ("000001", "media", "reason", "units", "bob")
    write(root, "faces", {f"k{one}": ({}, source(f"{one}/a", one)) for one in subjects})
    batch = "000001-1f0c99ab"
    units = pa.table({"key": ["k-bob"], "unit_id": ["u2"], "raw_key": ["bob/b.jpg"]})
    file = put_table(root.store, f"tables/faces/units/{batch}/x.parquet", units, "units")
    steps = pa.table(
        {
            "out_kind": ["stage"],
            "out_id": ["units"],
            "in_kind": ["stage"],
            "in_id": ["media"],
            "run_id": ["r"],
        }
    )
    put_table(root.store, f"tables/faces/lineage/{batch}/x.parquet", steps, "lineage")
    record = append_record(
        root.store,
        StageRecord(
            dataset="faces",
            stage="units",
            partition=batch,
            verdict="published",
            run_id="r",
            code_version="1",
            fingerprint="f",
            files={"units": file},
            upstream=(Upstream(stage="media", partition=batch, r=1),),
            body={
                "exclude": {"kreason": "near kbob", "x": "near kmedia, kmedia-2"},
                "labels": ["media", "cat"],
            },
        ),
    )
    n = kit.deny(root, *(Target(kind="subject", value=one) for one in subjects[:4]))
    assert finish_takedown(kit, root, n)[1] == []
    now = current_record(root.store, "faces", "units", batch)
    assert (now.partition, now.files, now.upstream) == (batch, record.files, record.upstream)
    assert now.body == {
        "exclude": {"x": "near (taken down), kmedia-2"},
        "labels": ["(taken down) 0", "cat"],
    }
    assert get_table(root.store, now.files["units"])["key"].to_pylist() == ["k-bob"]
    assert [info.key for info in root.store.list("tables/faces/lineage/")] == [
        f"tables/faces/lineage/{batch}/x.parquet"
    ]


def test_batch_keeps_objects_that_are_called_nearly_so(kit, root):
    bobs(root)
    names = ["bob/1.jpg", "bob-smith/1.jpg", "bob/10.jpg"]
    objects = [{"key": key, "uri": f"/landing/{key}", "etag": "e"} for key in names]
    path = "tables/photos/manifests/000001.json"
    root.store.put(path, json.dumps({"format": 1, "dataset": "photos", "objects": objects}).encode())
    kit.take_down(root, kit.deny(root, Target(kind="subject", value="bob")))
    body = json.loads(root.store.get(path).data)
    assert body["objects"][1:] == objects[1:]
    assert body["objects"][0]["key"].startswith("taken-down/")


def test_names_that_come_later_go_too(kit, root):
    """With a commit after the run: in a reason, in a column, as a class."""
    write(
        root,
        "photos",
        {
            f"{SECRET}/one": ({"dup_of": None}, {"subject": SECRET}),
            "p2": ({"dup_of": None}, {"subject": "bob"}),
        },
    )
    n = kit.deny(root)
    assert finish_takedown(kit, root, n)[1] == []
    write(root, "photos", {f"p{i}": ({"dup_of": f"{SECRET}/one"}, {"subject": "bob"}) for i in (3, 4)})
    root.exclude("photos", ["p3"], reason=f"near_duplicate of {SECRET}/one (distance 3)")
    proof = kit.prove(root, n)
    assert proof["result"] == "incomplete"
    assert {one["check"] for one in proof["places"] if not one["clean"]} == {"retired", "scan"}
    ran, left = finish_takedown(kit, root, n)
    assert (ran.new, ran.retired, left) == (["photos@5"], ["photos@3", "photos@4"], [])
    assert kit.found(root, SECRET) == []
    assert {key: row["dup_of"] for key, row in rows(root, "photos").items()} == {"p2": None, "p4": None}
    assert verify(root, "photos", full=True).problems == []
    part = loader.write_part(root, root.begin("photos"), [("q1", {"txt": "z"}, {}, {"subject": "eve"})])
    root.publish("photos", [part], producer={"labels": ["bob", SECRET, "eve"], "owner": "team"})
    # A version that tells no classes has those of the one before it, which is retired now.
    root.exclude("photos", ["p2"], reason="blurred", producer={"owner": "team"})
    ran, left = finish_takedown(kit, root, n)
    assert (ran.retired, left) == (["photos@6"], [])
    producer = root.open("photos").manifest["producer"]
    assert producer == {"takedown": n, "labels": ["bob", "(taken down) 1", "eve"], "owner": "team"}
    assert kit.found(root, SECRET) == []


def test_part_that_waits_and_names_one_is_no_lost_one(kit, root):
    """It may be published, and the next run rewrites it; until then the proof tells of it."""
    write(root, "photos", {f"{SECRET}/1": ({"near_of": None}, {"subject": SECRET}), "p2": ({}, {})})
    sample = ("q1", {"txt": "z"}, {"near_of": f"{SECRET}/1"}, {"subject": "eve"})
    part = loader.write_part(root, root.begin("photos"), [sample])
    n = kit.deny(root)
    kit.take_down(root, n)
    (left,) = [one for one in kit.prove(root, n)["places"] if one["check"] == "scan" and not one["clean"]]
    assert left["path"].startswith("data/")
    root.publish("photos", [part])
    assert finish_takedown(kit, root, n)[1] == []
    assert rows(root, "photos")["q1"]["near_of"] is None


def test_words_that_are_no_names_are_kept_and_not_searched(kit, root):
    """Labels, captions and lists of them; of lists that name samples the items go."""
    write(
        root,
        "photos",
        {
            "rose": ({"label": "x", "near": ["p2"], "near_keys": ["p2"], "caption": "me"}, {"subject": "u1"}),
            "p2": (
                {"label": "rose", "near": ["rose"], "near_keys": ["rose", "p3"], "caption": "a rose"},
                {"subject": "bob"},
            ),
            "p3": ({"label": "tulip", "near": [], "near_keys": None, "caption": "c"}, {"subject": "bob"}),
        },
    )
    _, left = finish_takedown(kit, root, kit.deny(root, Target(kind="subject", value="u1")))
    assert left == []
    row = rows(root, "photos")["p2"]
    assert (row["label"], row["near"], row["near_keys"], row["caption"]) == (
        "rose",
        ["rose"],
        ["p3"],
        "a rose",
    )


def test_what_an_annotation_replaced_does_not_come_back(kit, root):
    write(
        root,
        "photos",
        {"zqalice": ({"near_of": None}, {"subject": "A"})}
        | {key: ({"near_of": "p3"}, {"subject": "bob"}) for key in ("p2", "p3")},
    )
    for key, of in (("p2", "zqalice"), ("p3", "p2")):
        root.annotate("photos", "fix", [{"key": key, "near_of": of}], author="ann")
    _, left = finish_takedown(kit, root, kit.deny(root, Target(kind="subject", value="A")))
    assert left == []
    assert {key: row["near_of"] for key, row in rows(root, "photos").items()} == {"p2": None, "p3": "p2"}
    assert verify(root, "photos", full=True).problems == []


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("carol/1", "(taken down)"),
        ("near carol/1 (distance 3)", "near (taken down) (distance 3)"),
        ("carol/1.jpg: damaged", "(taken down).jpg: damaged"),
        ("'carol/1', copy of:carol/1.", "'(taken down)', copy of:(taken down)."),
        (
            "carol/10 carol/1/2 x/carol/1 carol/1-b carol/1~",
            "carol/10 carol/1/2 x/carol/1 carol/1-b carol/1~",
        ),
        ("x.carol/1 Carol/1", "x.carol/1 Carol/1"),
        ("(taken down) taken down (log entry 3)", "(taken down) taken down (log entry 3)"),
        ("takedown (log entry 3)", "takedown (log entry 3)"),
        ("down there", "(taken down) there"),
    ],
)
def test_names_in_texts(text, left, plain):
    """The same whether the names are known or their hashes alone."""
    known = dataset_marks(DENY, "photos", ["carol/1", "down", "entry"])
    marks = known if plain else dataset_marks(DENY, "photos", [], known.denied_marks)
    assert marks.without(text) == left
    assert marks.names(text) is (left != text)
    assert marks.without(left) == left


@pytest.mark.parametrize("plain", [True, False])
def test_names_in_tables_of_markdown(plain):
    """A name is escaped there: as it is now, and as earlier releases did."""
    names = ["car_ol|1", "www.zed.org/2", "a\\b<c>d"]
    known = dataset_marks(DENY, "photos", names)
    marks = known if plain else dataset_marks(DENY, "photos", [], known.denied_marks)
    stays = ["eve_1 & co", "zed"]
    told = {
        "table_markdown": markdown_table(
            ("sample", "x_y"), [(name, stay) for name in names for stay in stays]
        )
    }
    left = scrub_json(told, marks)
    gone = markdown_table(("sample", "x_y"), [("(taken down)", stay) for _ in names for stay in stays])
    assert left == {"table_markdown": gone}
    assert scrub_json(left, marks) == left
    column = pa.table({"table_markdown": [told["table_markdown"], gone, "| a\\\\b&lt;c>d | 1 |"]})
    assert scrub(column, marks)["table_markdown"].to_pylist() == [gone, gone, "| (taken down) | 1 |"]


def test_only_names_of_samples_are_searched_in_tables_and_json():
    marks = dataset_marks(DENY, "photos", ["rose"])
    table = pa.table({"label": ["rose"], "raw_key": ["rose"], "run_id": ["rose"]})
    assert scrub(table, marks) is table
    record = {"partition": "rose", "files": {"rose": {"path": "rose"}}, "rose": 1, "kind": "rose"}
    assert scrub_json(record, marks) == record
    assert scrub_json({"keys": ["rose", "x"], "of": "rose", "reason": "a rose"}, marks) == {
        "keys": ["x"],
        "of": "(taken down)",
        "reason": "a (taken down)",
    }
