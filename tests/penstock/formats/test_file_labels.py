"""Labels of plain files, from a table or from folders, when they are imported or registered."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.errors import Conflict, DuplicateKey, FieldNotFound, InvalidKey, InvalidRuntime, InvalidSample
from loader.storage import ObjectInfo, open_store
from loader.storage.store import Refusals
from penstock.formats.registration.file_labels import LabelOptions, without_table
from penstock.formats.registration.register import register
from penstock.formats.registration.selection import ListedObjects, Selection
from penstock.formats.run_import import import_place
from tests.refusals import refusal

FILES = ("cat/c1.jpg", "cat/c2.jpg", "dog/d1.jpg")
ROWS = "filename,label,weight,indoors\nc1.jpg,tabby,3.5,true\nc2.jpg,siamese,4,false\nd1.jpg,pug,8,true\n"


@pytest.fixture
def photos(tmp_path):
    """A folder with three photos and the table of their labels."""
    folder = tmp_path / "photos"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "labels.csv").write_text(ROWS)
    return folder


@pytest.fixture
def root(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        yield root


def import_folder(root, folder, **options):
    """Import the folder as `photos`; return the report and the newest version."""
    selection = options.pop("selection", Selection())
    report = import_place(
        root,
        "files",
        open_store(str(folder)),
        "photos",
        selection=selection,
        label_options=LabelOptions(**options),
    )
    return report, root.open("photos@latest")


def column(version, name):
    frame = version.samples().select("key", name).collect()
    return dict(zip(frame["key"], frame[name], strict=True))


def test_rows_of_a_table_become_typed_columns(root, photos):
    report, version = import_folder(root, photos, table=str(photos / "labels.csv"))
    assert report.samples == 3  # the table beside the photos is not a sample
    assert report.notes == []
    kinds = {name: version.manifest["columns"][name]["type"] for name in ("label", "weight", "indoors")}
    assert kinds == {"label": "string", "weight": "double", "indoors": "bool"}
    assert column(version, "label") == {"cat/c1": "tabby", "cat/c2": "siamese", "dog/d1": "pug"}
    assert column(version, "weight") == {"cat/c1": 3.5, "cat/c2": 4.0, "dog/d1": 8.0}
    again, same = import_folder(root, photos, table=str(photos / "labels.csv"))
    assert (same.id, again.relabelled) == (version.id, 0)


def test_labels_of_a_table_reach_a_batch_as_class_numbers(root, photos):
    _, version = import_folder(root, photos, table=str(photos / "labels.csv"))
    view = version.select("jpg", columns={"label": version.classes("label"), "weight": None})
    plan = loader.plan({"photos": view}, seed=1, global_batch=3)
    with loader.Loader(plan, 0, 1, decode=False, framework="numpy") as batches:
        batch = next(batches)
    numbers = dict(zip((key for _, key in batch.ids), batch["label"].tolist(), strict=True))
    assert numbers == {"dog/d1": 0, "cat/c2": 1, "cat/c1": 2}  # pug, siamese, tabby
    assert batch["weight"].dtype == np.float64


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ("path\tlabel\ncat/c1.jpg\ta\ncat/c2.jpg\tb\ndog/d1.jpg\tc\n", "labels.tsv"),
        ("image,label\nc1,a\nc2,b\nd1,c\n", "labels.csv"),
        ('{"file_name": "cat/c1", "label": "a"}\n{"file_name": "cat/c2", "label": "b"}\n'
         '{"file_name": "dog/d1", "label": "c"}\n', "labels.jsonl"),
    ],
)  # fmt: skip
def test_a_row_names_a_file_by_path_or_name_with_or_without_extension(root, photos, tmp_path, rows, name):
    table = tmp_path / name
    table.write_text(rows)
    (photos / "labels.csv").unlink()
    _, version = import_folder(root, photos, table=str(table))
    assert column(version, "label") == {"cat/c1": "a", "cat/c2": "b", "dog/d1": "c"}


def test_rows_name_files_beside_folders_too(root, photos, tmp_path):
    table = tmp_path / "labels.csv"
    (photos / "labels.csv").unlink()
    (photos / "loose.jpg").write_bytes(b"loose")  # its path is its name
    table.write_text("image,label\nloose.jpg,a\nc1.jpg,b\nc2.jpg,c\nd1.jpg,d\n")
    _, version = import_folder(root, photos, table=str(table))
    assert column(version, "label") == {"loose": "a", "cat/c1": "b", "cat/c2": "c", "dog/d1": "d"}


def test_an_unchanged_label_that_is_no_number_makes_no_version(root, photos):
    (photos / "labels.csv").write_text("image,grade\nc1,nan\nc2,1.5\nd1,2.5\n")
    _, version = import_folder(root, photos, table=str(photos / "labels.csv"))
    report, same = import_folder(root, photos, table=str(photos / "labels.csv"))
    assert (report.relabelled, same.id) == (0, version.id)
    (photos / "labels.csv").write_text("image,grade\nc1,3.5\nc2,nan\nd1,2.5\n")
    report, changed = import_folder(root, photos, table=str(photos / "labels.csv"))
    assert report.relabelled == 2
    assert column(changed, "grade")["cat/c1"] == 3.5


def test_table_whose_url_has_options_is_no_sample():
    store = SimpleNamespace(url="s3://bucket/photos")
    infos = [ObjectInfo(key=key, nbytes=1, etag="") for key in ("a.jpg", "labels.csv")]
    listed = ListedObjects(infos, 2, Refusals(), lambda key: "")
    options = LabelOptions(table="s3://bucket/photos/labels.csv?endpoint=http://127.0.0.1:9000")
    assert [info.key for info in without_table(store, listed, options).infos] == ["a.jpg"]


def test_a_parquet_table_has_its_own_key_column(root, photos, tmp_path):
    (photos / "labels.csv").unlink()
    table = tmp_path / "labels.parquet"
    pq.write_table(pa.table({"id": ["c1", "c2", "d1"], "grade": [1, 2, 3]}), table)
    with refusal(FieldNotFound, what="key column", where="labels.parquet", given=["id", "grade"]):
        import_folder(root, photos, table=str(table))
    _, version = import_folder(root, photos, table=str(table), key="id")
    assert column(version, "grade") == {"cat/c1": 1, "cat/c2": 2, "dog/d1": 3}


def test_folder_names_become_labels_only_on_request(root, photos):
    (photos / "labels.csv").unlink()
    (photos / "loose.jpg").write_bytes(b"loose")
    report, version = import_folder(root, photos)
    assert "label" not in version.manifest["columns"]
    report, version = import_folder(root, photos, label_from="folder")
    assert report.relabelled == 3  # files of the first import
    assert column(version, "label") == {"cat/c1": "cat", "cat/c2": "cat", "dog/d1": "dog", "loose": None}
    assert report.notes == ["1 files lie in no folder, so they have no label: 'loose.jpg'"]


def test_a_later_import_without_labels_is_refused(root, photos):
    (photos / "labels.csv").unlink()
    import_folder(root, photos, label_from="folder")
    root.exclude("photos@latest", ["cat/c1"], reason="blurred")
    (photos / "cat" / "c3.jpg").write_bytes(b"new")
    with refusal(Conflict, what="labels", where="photos@2", accepted="--label-from folder"):
        import_folder(root, photos)
    _, unlabelled = import_folder(root, photos, label_from="none")
    assert column(unlabelled, "label") == {"cat/c2": "cat", "cat/c3": None, "dog/d1": "dog"}


def test_changed_labels_of_unchanged_files_make_an_annotation(root, photos):
    _, first = import_folder(root, photos, table=str(photos / "labels.csv"))
    (photos / "cat" / "c3.jpg").write_bytes(b"new")
    (photos / "labels.csv").write_text(ROWS.replace("pug", "boxer") + "c3.jpg,persian,5,false\n")
    report, version = import_folder(root, photos, table=str(photos / "labels.csv"))
    assert (report.new, report.same, report.relabelled) == (1, 3, 1)
    assert column(version, "label") == {
        "cat/c1": "tabby",
        "cat/c2": "siamese",
        "cat/c3": "persian",
        "dog/d1": "boxer",
    }
    assert column(first, "label")["dog/d1"] == "pug"


def test_a_table_of_new_files_leaves_earlier_labels(root, photos):
    import_folder(root, photos, table=str(photos / "labels.csv"))
    (photos / "cat" / "c3.jpg").write_bytes(b"new")
    (photos / "labels.csv").write_text("filename,label\nc3.jpg,persian\n")
    report, version = import_folder(root, photos, table=str(photos / "labels.csv"))
    assert report.relabelled == 0
    assert column(version, "label")["cat/c1"] == "tabby"
    assert report.notes == ["3 files have no row in labels.csv: 'cat/c1.jpg', 'cat/c2.jpg', 'dog/d1.jpg'"]


def test_rows_that_no_file_has_are_refused_or_ignored(root, photos):
    (photos / "labels.csv").write_text(ROWS + "gone.jpg,husky,9,true\n")
    with refusal(
        InvalidKey, what="name", where="labels.csv", given=["gone.jpg"], accepted="files of the source"
    ):
        import_folder(root, photos, table=str(photos / "labels.csv"))
    assert "photos" not in root.datasets()
    _, version = import_folder(root, photos, table=str(photos / "labels.csv"), is_partial=True)
    assert len(version) == 3


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ("filename,label\nc1.jpg,a\nc1.jpg,b\n", DuplicateKey, "line 3 of labels.csv names 'c1.jpg'"),
        ("filename,label\nc1.jpg,a,b\n", InvalidSample, "line 2 of labels.csv has 3 cells"),
        ("filename\nc1.jpg\n", InvalidSample, "only names of files"),
        ("filename,label\n", InvalidSample, "has no rows"),
        ("filename,nbytes\nc1.jpg,3\n", InvalidSample, "--without nbytes"),
        ("filename,label\nother.jpg,a\n", InvalidKey, "no row of labels.csv names a file"),
        ("name,label\nc1.jpg,a\n", FieldNotFound, "columns name, label"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(root, photos, rows, error, words):
    (photos / "labels.csv").write_text(rows)
    with pytest.raises(error) as raised:
        import_folder(root, photos, table=str(photos / "labels.csv"))
    assert words in str(raised.value)
    assert "photos" not in root.datasets()


def test_a_name_of_two_files_is_refused(root, photos):
    (photos / "dog" / "c1.jpg").write_bytes(b"another")
    with refusal(
        InvalidKey, what="name", where="labels.csv", given="c1.jpg", accepted=["cat/c1.jpg", "dog/c1.jpg"]
    ):
        import_folder(root, photos, table=str(photos / "labels.csv"))


def test_a_registration_has_labels_and_changes_them(root, photos):
    options = LabelOptions(table=str(photos / "labels.csv"))
    first = register(root, "files", str(photos), "photos", label_options=options).version
    assert column(first, "label") == {"cat/c1": "tabby", "cat/c2": "siamese", "dog/d1": "pug"}
    again = register(root, "files", str(photos), "photos", label_options=options)
    assert (again.version.id, again.relabelled) == (first.id, 0)
    (photos / "labels.csv").write_text(ROWS.replace("pug", "boxer"))
    changed = register(root, "files", str(photos), "photos", label_options=options)
    assert changed.relabelled == 1
    assert column(changed.version, "label")["dog/d1"] == "boxer"
    with refusal(Conflict, what="labels", where="photos@2", accepted="--labels"):
        register(root, "files", str(photos), "photos")


def test_labels_are_for_plain_files(root, photos):
    with refusal(InvalidRuntime, what="--labels", given="csv", accepted="files"):
        import_place(
            root, "csv", open_store(str(photos)), "photos", label_options=LabelOptions(label_from="folder")
        )
    with refusal(InvalidRuntime, what="--label-from", given="name", accepted=["folder", "none"]):
        LabelOptions(label_from="name")
    with refusal(
        InvalidRuntime, what="--labels", accepted="the table that --key and --partial-labels describe"
    ):
        LabelOptions(key="id")
