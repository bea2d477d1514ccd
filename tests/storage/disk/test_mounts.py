"""Folders on network file systems: files as on a disk, but reads that wait as a bucket's do."""

import pytest

import loader
from loader.dataset.reading.sha256_store import VerifiedStore
from loader.storage import is_local, is_on_network, open_store
from loader.storage.disk import mounts
from loader.storage.disk.mounts import is_network_folder

TABLE = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:35 / /mnt/nfs rw - nfs4 server:/export rw,vers=4.2
41 22 0:36 / /mnt/bucket rw - fuse mountpoint-s3 rw
42 22 0:37 / /mnt/nfs/scratch rw - xfs /dev/sdb rw
43 22 0:40 / /mnt/lustre rw - lustre mgs:/fs rw
"""


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/data", False),
        ("/mnt/nfs/root", True),
        ("/mnt/nfs/scratch/root", False),
        ("/mnt/bucket", True),
        ("/mnt/lustre/root", True),
    ],
)
def test_network_folder_is_known_by_its_mount(folder, expected):
    assert is_network_folder(folder, TABLE) is expected


@pytest.fixture
def network(monkeypatch):
    """Mount everything by NFS."""
    mount = mounts.Mount(point="/", kind="nfs4", device="server:/export")
    monkeypatch.setattr(mounts, "find_mount", lambda folder, table=None: mount)


def test_store_is_on_network_with_its_folder(tmp_path, network):
    store = open_store(str(tmp_path / "root"))
    assert is_local(store), "files are opened, renamed and locked as on a disk"
    assert is_on_network(store)
    assert not is_on_network(open_store("memory://elsewhere"))


def test_shards_are_on_network_with_their_root(tmp_path, network):
    root = loader.Root(str(tmp_path / "root"))
    with root.write("d") as writer:
        writer.add("a", {"cls": 1})
    shards = root.open("d").shard_store
    assert is_on_network(shards)
    assert is_on_network(VerifiedStore(shards, lambda path: None))
