"""The objects of a place that count: by patterns, by what tables say of their files, and by what a listing can read."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.errors import Conflict, Corrupt, EmptyVersion, InvalidRuntime, InvalidStore
from loader.storage import open_store
from penstock.formats.registration.register import register
from penstock.formats.registration.selection import EVERYTHING, Selection, list_selected
from tests.penstock.formats.builders.places import arrow, table
from tests.refusals import refusal


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def _selected_keys(place, format, **selection):
    listed = list_selected(open_store(str(place)), format, Selection(**selection))
    return [info.key for info in listed.infos]


def _add(path, **more):
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "dataChange": True, **more}}


def _commit(place, number, *actions):
    log = place / "_delta_log"
    log.mkdir(exist_ok=True)
    (log / f"{number:020}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")


PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


@pytest.fixture
def delta(place):
    """A Delta table of which an update replaced a file, and a delete took another away."""
    for name in ("0", "1", "2", "b c"):
        table(place / f"part-{name}.parquet", {"text": [f"text {name}"]})
    table(place / "day=1/part-3.parquet", {"text": ["text 3"]})
    _commit(place, 0, PROTOCOL, {"metaData": {"id": "x", "configuration": {}}}, _add("part-0.parquet"))
    _commit(place, 1, _add("part-1.parquet"), _add("day=1/part-3.parquet"), _add("part-b%20c.parquet"))
    _commit(place, 2, {"remove": {"path": "part-0.parquet", "dataChange": True}}, _add("part-2.parquet"))
    _commit(place, 3, {"remove": {"path": "part-1.parquet", "dataChange": True}}, {"commitInfo": {}})
    return place


LIVE = ["day=1/part-3.parquet", "part-2.parquet", "part-b c.parquet"]


def test_live_files_of_a_delta_table_are_taken(delta, root):
    assert _selected_keys(delta, "parquet") == LIVE
    done = register(root, "parquet", delta, "texts", fields={"text": "txt"})
    assert len(done.version) == 3
    assert (done.new, done.others) == (3, 6)


def _checkpoint(place, number, actions, name=""):
    kinds = pa.struct([("path", pa.string()), ("size", pa.int64())])
    rows = {kind: [action.get(kind) for action in actions] for kind in ("add", "remove")}
    protocol = [action.get("protocol") for action in actions]
    table = pa.table(
        {
            "add": pa.array([one and {"path": one["path"], "size": 1} for one in rows["add"]], kinds),
            "remove": pa.array([one and {"path": one["path"], "size": 1} for one in rows["remove"]], kinds),
            "protocol": pa.array(protocol, pa.struct([("minReaderVersion", pa.int32())])),
        }
    )
    pq.write_table(table, place / f"_delta_log/{number:020}.checkpoint{name}.parquet")


def test_checkpoint_of_a_delta_log_takes_the_place_of_its_commits(delta):
    actions = [PROTOCOL, _add("part-1.parquet"), _add("day=1/part-3.parquet"), _add("part-b%20c.parquet")]
    for number in (0, 1):  # cleaned away
        (delta / f"_delta_log/{number:020}.json").unlink()
    with refusal(Corrupt, what="commit 0", where=f"{delta}/_delta_log/"):
        _selected_keys(delta, "parquet")
    _checkpoint(delta, 1, actions[:2], f".{1:010}.{2:010}")
    with refusal(Corrupt, what="commit 0", where=f"{delta}/_delta_log/"):  # half a checkpoint is none
        _selected_keys(delta, "parquet")
    _checkpoint(delta, 1, actions[2:], f".{2:010}.{2:010}")
    assert _selected_keys(delta, "parquet") == LIVE


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        (
            _add("part-0.parquet", deletionVector={"storageType": "u", "pathOrInlineDv": "a"}),
            {"what": "deletion vectors", "given": "part-0.parquet"},
        ),
        (
            {"metaData": {"configuration": {"delta.columnMapping.mode": "name"}}},
            {"what": "columnMapping.mode", "given": "name"},
        ),
        ({"protocol": {"minReaderVersion": 4}}, {"what": "minReaderVersion", "given": 4}),
        ({"protocol": {"minReaderVersion": 3, "readerFeatures": ["v2Checkpoint"]}}, {"what": "v2Checkpoint"}),
        (
            _add("s3://elsewhere/x.parquet"),
            {"what": "file", "given": "s3://elsewhere/x.parquet", "accepted": "a file of the table's folder"},
        ),
        (
            _add("../x.parquet"),
            {"what": "file", "given": "../x.parquet", "accepted": "a file of the table's folder"},
        ),
    ],
)
def test_delta_table_whose_files_do_not_tell_its_rows_is_refused(delta, action, fault):
    _commit(delta, 4, action)
    with refusal(InvalidStore, **fault):
        _selected_keys(delta, "parquet")
    assert _selected_keys(delta, "parquet", exclude=("_delta_log/",))[1:] == [
        f"part-{name}.parquet" for name in ("0", "1", "2", "b c")
    ]


def test_rows_that_are_deleted_in_place_count_again_once_their_file_is_rewritten(delta):
    vector = {"storageType": "u", "pathOrInlineDv": "a", "offset": 1}
    _commit(delta, 4, _add("part-2.parquet", deletionVector=vector), {"remove": {"path": "part-2.parquet"}})
    _commit(
        delta, 5, {"remove": {"path": "part-2.parquet", "deletionVector": vector}}, _add("part-0.parquet")
    )
    assert _selected_keys(delta, "parquet") == ["day=1/part-3.parquet", "part-0.parquet", "part-b c.parquet"]


def test_delta_log_that_is_damaged_or_lists_what_is_gone_is_named(delta):
    (delta / "part-2.parquet").unlink()
    with refusal(Corrupt, what="part-2.parquet", given=1):
        _selected_keys(delta, "parquet")
    (delta / "_delta_log" / f"{2:020}.json").write_text('{"add": ')
    with refusal(Corrupt, what="line 1", accepted="an action of a Delta log"):
        _selected_keys(delta, "parquet")


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("t/.hoodie/hoodie.properties", {"what": "table of Hudi", "given": "t/.hoodie/hoodie.properties"}),
        ("t/metadata/v3.metadata.json", {"what": "table of Iceberg", "given": "t/metadata/v3.metadata.json"}),
    ],
)
def test_tables_whose_metadata_are_not_read_are_refused_by_name(place, key, fault):
    table(place / "t/data/0.parquet", {"text": ["stale"]})
    table(place / "plain/0.parquet", {"text": ["live"]})
    (place / key).parent.mkdir(parents=True)
    (place / key).write_bytes(b"{}")
    with refusal(InvalidStore, **fault):
        _selected_keys(place, "parquet")
    assert _selected_keys(place, "parquet", exclude=("/t/**",)) == ["plain/0.parquet"]
    assert len(_selected_keys(place, "files")) == 3  # whose samples are files, whatever they hold


def test_other_tools_own_files_hold_no_rows(place):
    for key in ("a.parquet", "_day=1/b.parquet", "_temporary/0/c.parquet", "x/_d.parquet", ".e/f.parquet"):
        table(place / key, {"text": [key]})
    (place / "_SUCCESS").write_bytes(b"")
    (place / ".a.parquet.crc").write_bytes(b"crc")
    assert _selected_keys(place, "parquet") == ["_day=1/b.parquet", "a.parquet"]
    assert len(_selected_keys(place, "files")) == 7


def test_cache_of_hugging_face_leaves_out_what_filter_and_map_wrote(place, root):
    folder = place / "json/default-0123/0.0.0/abcd"
    arrow(folder / "json-train.arrow", {"text": ["one", "two"]})
    arrow(folder / "cache-0123456789abcdef.arrow", {"indices": pa.array([1], pa.uint64())})
    arrow(folder / "cache-0123456789abcdee_00000_of_00002.arrow", {"text": ["ONE"]})
    arrow(place / "json/default-0123/0.0.0/ef.incomplete/json-train.arrow", {"text": ["half"]})
    (folder / "dataset_info.json").write_text("{}")
    assert len(register(root, "arrow", place, "texts", fields={"text": "txt"}).version) == 2


def test_files_missing_in_the_state_of_a_saved_dataset_are_skipped(place, root):
    arrow(place / "data-00000-of-00001.arrow", {"text": ["one", "two"]})
    arrow(place / "old.arrow", {"text": ["stale"]})
    (place / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )
    assert len(register(root, "arrow", place, "texts", fields={"text": "txt"}).version) == 2


def test_patterns_choose_objects_and_are_part_of_the_version(place, root):
    for key in ("train/a.jpg", "train/a.tmp", "test/b.jpg"):
        (place / key).parent.mkdir(exist_ok=True)
        (place / key).write_bytes(key.encode())
    chosen = Selection(include=("/train/**",), exclude=("*.tmp",))
    done = register(root, "files", place, "photos", selection=chosen)
    assert (done.new, done.others) == (1, 2)
    assert json.loads(json.dumps(done.version.manifest["producer"]))["registered"]["include"] == ["/train/**"]
    assert register(root, "files", place, "photos", selection=chosen).same == 1
    with refusal(Conflict, what="options", where="photos@1", given="{'format': 'files', 'without': []}"):
        register(root, "files", place, "photos")
    plain = register(loader.Root(f"{root.url}-2"), "files", place, "photos", selection=EVERYTHING).version
    assert "include" not in plain.manifest["producer"]["registered"]
    with refusal(EmptyVersion, what="files", where=place):
        register(root, "files", place, "others", selection=Selection(include=("*.png",)))
    with refusal(InvalidRuntime, what="patterns", within="/place", given=["!"]):
        register(root, "files", place, "others", selection=Selection(include=("!",)))


@pytest.mark.parametrize("format", ["files", "webdataset", "mds", "parquet"])
def test_mistyped_place_is_named(root, tmp_path, format):
    with refusal(EmptyVersion, what=format, where=f"{tmp_path}/typo"):
        register(root, format, tmp_path / "typo", "photos")


def test_link_that_leaves_a_place_adds_nothing(place, root, tmp_path):
    (tmp_path / "system").mkdir()
    for number in range(5):
        (tmp_path / f"system/{number}.txt").write_bytes(b"not yours")
    (place / "a.txt").write_bytes(b"mine")
    (place / "docs").symlink_to(tmp_path / "system")
    (place / "bell\x07.txt").write_bytes(b"x")
    done = register(root, "files", place, "texts")
    assert len(done.version) == 1
    assert [name for name, _ in done.refusals.first] == ["bell\x07.txt", "docs"]
    (place / "a.txt").unlink()
    with refusal(EmptyVersion, what="files", where=f"{tmp_path}/place"):
        register(root, "files", place, "others")
    assert not register(root, "files", tmp_path / "system", "theirs").refusals.n
