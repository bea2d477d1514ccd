"""No command writes into what it reads: one check compares folders behind links, and buckets by server."""

import os

import pytest

import loader
from loader.errors import Conflict, InvalidStore
from loader.storage import open_store
from penstock.formats.run_export import export
from penstock.places import check_apart
from penstock.train.checkpoint_copies import copy_checkpoints
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import migrate
from tests.refusals import refusal

S3 = {"key": "k", "secret": "s", "region": "us-east-1"}


@pytest.fixture
def root(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            writer.add("k", {"txt": "x"})
        yield root


def overlapping_places(tmp_path):
    """Yield places that contain the root or lie in it, however they are spelled."""
    folder = tmp_path / "root"
    yield str(folder)
    yield f"{folder}/"
    yield f"file://{folder}"
    yield f"{folder}/exports/new"
    yield f"{folder}/data/../exports"
    yield os.path.relpath(folder)
    yield str(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(folder)
    yield str(link)
    yield f"{link}/exports"
    inner = tmp_path / "inner"
    inner.symlink_to(folder / "data")
    yield str(inner)


def objects(root):
    return sorted(info.key for info in root.store.list() if not info.key.startswith("leases/"))


def test_targets_in_the_root_are_refused_however_they_are_spelled(root, tmp_path):
    there = objects(root)
    for place in overlapping_places(tmp_path):
        store = open_store(place)
        with refusal(InvalidStore, what="locations", given=[store.url, root.url]):
            export(root.open("d"), "files", store)
        with refusal(InvalidStore, what="locations", given=[store.url, root.url]):
            migrate(root, store, Pace())
    assert objects(root) == there


def test_checkpoints_are_not_copied_into_their_root(root, tmp_path):
    for place in overlapping_places(tmp_path):
        copies = loader.Root(place)
        with refusal(InvalidStore, what="locations", given=[copies.url, root.url]):
            list(copy_checkpoints(root.store, copies, "run"))


def test_neighbours_of_the_root_are_targets(root, tmp_path):
    for name in ("root2", "roo", "beside/root"):
        assert export(root.open("d"), "files", open_store(str(tmp_path / name))).failures == []


@pytest.mark.parametrize("inside", ["train", ".penstock", "k.txt"])
def test_export_writes_through_no_link_in_its_target(root, tmp_path, inside):
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "target"
    elsewhere.mkdir()
    target.mkdir()
    (target / inside).symlink_to(elsewhere)
    with refusal(Conflict, what="symbolic link", where=target, given=inside):
        export(root.open("d"), "files", open_store(str(target)))
    assert list(elsewhere.iterdir()) == []


def test_buckets_are_compared_by_server_and_not_by_scheme():
    def s3(url, **options):
        return open_store(url, {**S3, **options})

    server = {"endpoint_url": "http://localhost:1"}
    for url in (
        "s3://bucket/root",
        "s3a://bucket/root",
        "s3://bucket/root/x",
        "s3://bucket",
        "s3://bucket/root/",
    ):
        with refusal(InvalidStore, what="locations", accepted="locations apart"):
            check_apart(s3("s3://bucket/root", **server), s3(url, **server), "")
    for url in ("s3://bucket/root2", "s3://bucket2/root"):
        check_apart(s3("s3://bucket/root", **server), s3(url, **server), "")
    check_apart(
        s3("s3://bucket/root", **server), s3("s3://bucket/root", endpoint_url="http://localhost:2"), ""
    )


@pytest.mark.parametrize(
    "command",
    [
        ("card", "d", "--into"),
        ("card", "d", "--html"),
        ("takedown", "prove", "1", "--out"),
        ("migrate", "plan", "{beside}", "--rclone"),
        ("migrate", "plan", "{beside}", "--s5cmd"),
    ],
)
def test_files_in_the_root_are_refused(root, tmp_path, cli, command):
    words = [word.format(beside=tmp_path / "beside") for word in command]
    done = cli(*words, tmp_path / "root/data/file", root=root.url)
    assert (done.code, "lies in" in done.err) == (2, True)
    assert not (tmp_path / "root/data/file").exists()
