"""--delete-raw deletes below the sources of a dataset, whatever a sample says it was cut of."""

import json

import pytest

import loader
from loader.dataset.log.denies import Target
from loader.errors import InvalidStore
from penstock.cli import main
from penstock.denied.sources import check_place, why_not
from penstock.formats.files_beside import files_beside
from penstock.upkeep.takedown.raw_objects import RawDeletion, delete_object
from penstock.upkeep.takedown.takedown_run import run_takedown


@pytest.fixture
def place(tmp_path):
    """A folder with a root, the landing place of its dataset, and what is somebody else's."""
    for name in ("landing/deep", "landing-other", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def cut(place, *uris, landing="landing"):
    """A root with a sample of each raw object, all to be taken down; the takedown's number."""
    root = loader.Root(str(place / "root"))
    with root.write("photos") as writer:
        for i, uri in enumerate([*uris, "kept"]):
            writer.add(f"k{i}", {"txt": str(i)}, source={"raw_uri": uri, "subject": "bob" if i else "alice"})
    if landing:
        body = {"format": 1, "dataset": "photos", "landing": str(place / landing), "objects": []}
        root.store.put("tables/photos/manifests/000001.json", json.dumps(body).encode())
    targets = [Target(kind="sample", value=f"k{i}", dataset="photos") for i in range(len(uris))]
    return root, root.log.deny(targets, "ticket 12", "desk").n


def files(place, *names):
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"raw")
    return [str(place / name) for name in names]


def there(place):
    """Files but for those of the root."""
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    return {path for path in found if not path.startswith("root/")}


def test_only_what_lies_below_a_landing_place_of_the_dataset_goes(kit, place):
    own = files(place, "landing/a.jpg", "landing/deep/b 100%.jpg")
    others = files(place, "landing-other/c.jpg", "elsewhere/d.jpg", "x.jpg")
    (place / "landing/link").symlink_to(place / "elsewhere")
    (place / "landing/pointer.jpg").symlink_to(place / "x.jpg")
    odd = [
        f"{place}/landing/../elsewhere/d.jpg",
        f"{place}/landing//../x.jpg",
        f"{place}/landing/link/d.jpg",
        f"{place}/LANDING/a.jpg",
        f"{place}/root/penstock.json",
    ]
    root, n = cut(place, *own, f"{place}/landing/pointer.jpg", *others, *odd)
    ran = run_takedown(root, n, apply=True, raw=RawDeletion(delete_object, files_beside))
    assert ran.deleted == sorted([*own, f"{place}/landing/pointer.jpg"])
    assert sorted(ran.refused) == sorted([*others, *odd])
    assert there(place) == {"landing-other/c.jpg", "elsewhere/d.jpg", "x.jpg"}
    assert f"left at its source (a link leads it out of its source, to {place}/elsewhere)" in ran.text()
    kit.sweep(root)
    proof = kit.prove(root, n)
    left = [one for one in proof["places"] if one["check"] == "raw" and not one["clean"]]
    assert (proof["result"], len(left)) == ("incomplete", len(others) + len(odd))


@pytest.mark.parametrize("has_mount_point", [False, True])
def test_object_of_a_disk_that_is_not_mounted_is_not_on_record_as_deleted(place, has_mount_point):
    own = files(place, "landing/a.jpg")
    root, n = cut(place, *own)
    (place / "landing").rename(place / "unmounted")
    if has_mount_point:
        (place / "landing").mkdir()
    ran = run_takedown(root, n, apply=True, raw=RawDeletion(delete_object, files_beside))
    assert (ran.deleted, list(ran.refused)) == ([], own)
    if has_mount_point:
        (place / "landing").rmdir()
    (place / "unmounted").rename(place / "landing")
    # The second run finds an empty source, whose object is on record.
    for _ in range(2):
        ran = run_takedown(root, n, apply=True, raw=RawDeletion(delete_object, files_beside))
        assert (ran.deleted, ran.refused) == (own, {})
    assert there(place) == set()


def test_what_lies_in_a_root_stays(place):
    """Also in one that lies in the landing place."""
    root, n = cut(place, str(place / "root/penstock.json"), str(place / "old/data/x.tar"), landing=".")
    files(place, "old/penstock.json", "old/data/x.tar")
    ran = run_takedown(root, n, apply=True, raw=RawDeletion(delete_object, files_beside))
    assert sorted(ran.refused.values()) == ["it lies in a root", "it lies in the root"]
    assert "old/data/x.tar" in there(place)


def test_operator_says_where(place, capsys):
    """And nobody else: whoever writes `tables/` names landing places too."""
    (own,) = files(place, "elsewhere/d.jpg")
    _, n = cut(place, own, landing="elsewhere")
    verb = ["takedown", "run", str(n), "--apply", "--delete-raw", "--root", str(place / "root")]
    assert main(verb) == 2
    asked = capsys.readouterr().err
    assert "add --raw-below PLACE; the batches under this root name" in asked
    assert f"{place}/elsewhere" in asked
    assert there(place) == {"elsewhere/d.jpg"}
    assert main([*verb, "--raw-below", str(place / "landing")]) == 0
    assert there(place) == {"elsewhere/d.jpg"}
    assert main([*verb, "--raw-below", str(place / "elsewhere/")]) == 0
    assert there(place) == set()
    assert main([*verb[:4], "--raw-below", "/x", *verb[5:]]) == 2
    assert "--raw-below without --delete-raw" in capsys.readouterr().err
    assert main([*verb, "--raw-below", "/"]) == 2
    assert "is neither a folder nor a bucket" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("s3://b/raw/a.jpg", ""),
        ("s3://b/raw/x/what?.jpg", ""),
        ("s3://b/raw-other/a.jpg", "not below"),
        ("s3://b/raw", "not below"),
        ("s3://b2/raw/a.jpg", "not below"),
        ("s3://B/raw/a.jpg", "not below"),
        ("gs://b/raw/a.jpg", "not below"),
        ("s3://b/raw/../other/a.jpg", "two ways"),
        ("s3://b/raw//a.jpg", "two ways"),
        ("s3://b/raw/?x/a.jpg", "two ways"),
        ("s3://b/raw/", "two ways"),
        ("s3://b/raw/root/data/t/x.tar", "in the root"),
        ("/b/raw/a.jpg", "not below"),
        ("a.jpg", "not below"),
    ],
)
def test_addresses(uri, why):
    told = why_not(uri, ["s3://b/raw/", "/"], "s3://b/raw/root")
    assert why in told if why else told == ""


@pytest.mark.parametrize("place", ["/", "s3://", "file:///", "raw", "/a/../.."])
def test_everything_is_no_source(place):
    with pytest.raises(InvalidStore):
        check_place(place)
    assert why_not("/a/b.jpg", [place], "/root")
    assert why_not("s3://b/a.jpg", [place], "/root")
