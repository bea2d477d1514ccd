"""What a folder's file system is told to be, and what it cannot do."""

import errno
import os
import threading

import pytest

from penstock.upkeep.doctor import filesystem as disk
from penstock.upkeep.doctor import filesystem as mounts
from penstock.upkeep.doctor.filesystem import find_mount
from penstock.upkeep.doctor.store_probes import Folder

TABLE = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw - proc proc rw
40 22 0:35 / /mnt/with\\040blank rw - nfs4 server:/export rw,vers=4.2
41 22 0:36 / /mnt/s3 rw - fuse.s3fs s3fs rw
42 22 0:37 / /mnt rw - xfs /dev/sdb rw
43 41 0:38 / /mnt/s3/inner rw - overlay overlay rw
44 22 0:39 / /tmp/shared rw - tmpfs tmpfs rw
45 22 0:40 / /tmp/shared rw - lustre mgs:/fs rw
46 22 0:41 / /m/s3 rw - fuse mountpoint-s3 rw
47 22 0:42 / /m/azure rw - fuse blobfuse2 rw
48 22 0:43 / /m/weka rw - wekafs weka/fs rw
49 22 0:44 / /m/new rw - fuse.newfs newfs rw
50 22 0:45 / /m/ntfs rw - fuse /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    ("folder", "kind", "level"),
    [
        ("/data/root", "ext4", "ok"),
        ("/mnt/root", "xfs", "ok"),
        ("/mnt/with blank/root", "nfs4", "warn"),
        ("/mnt/with blanks", "xfs", "ok"),
        ("/mnt/s3/root", "fuse.s3fs", "fail"),
        ("/mnt/s3/inner", "overlay", "warn"),
        ("/tmp/shared/root", "lustre", "warn"),
        ("/m/s3/root", "fuse.mountpoint-s3", "fail"),
        ("/m/azure/root", "fuse.blobfuse2", "fail"),
        ("/m/weka/root", "wekafs", "warn"),
        ("/m/new/root", "fuse.newfs", "warn"),
        ("/m/ntfs/root", "fuse", "warn"),
    ],
)
def test_mount_that_holds_a_folder(monkeypatch, folder, kind, level):
    mount = find_mount(folder, TABLE)
    assert mount is not None
    assert mount.kind == kind
    monkeypatch.setattr(disk, "find_mount", lambda _: mount)
    (found,) = disk.file_system(folder)
    assert (found.level, bool(found.do)) == (level, level != "ok")


def test_this_machines_own_mounts():
    assert find_mount("/proc").kind == "proc"
    assert not mounts.NETWORK & mounts.BUCKETS


def only(found):
    (one,) = found
    return one.level, one.what


def test_file_system_without_links(monkeypatch, tmp_path):
    def link(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    level, what = only(disk.links(str(tmp_path)))
    assert (level, "no hard links" in what) == ("fail", True)


def test_link_that_replaces(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "link", lambda source, target: (os.path.exists(target), None)[1])
    assert only(disk.links(str(tmp_path))) == ("fail", "link() replaced a name that was there")


def test_fsync_that_fails(monkeypatch, tmp_path):
    def fsync(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    level, what = only(disk.durability(str(tmp_path)))
    assert (level, "fsync fails" in what) == ("fail", True)


def test_rename_that_copies(monkeypatch, tmp_path):
    """What some mounted buckets do: the target is emptied and filled again."""
    seen = threading.Event()

    def replace(source, target):
        with open(source, "rb") as old, open(target, "wb") as new:
            new.flush()
            seen.wait(0.01)
            new.write(old.read())

    monkeypatch.setattr(os, "replace", replace)
    level, what = only(disk.renames(str(tmp_path)))
    assert (level, "not atomic" in what) == ("fail", True)


def test_full_disk_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(disk, "FEW_BYTES", 2**80)
    monkeypatch.setattr(disk, "FEW_FILES", 2**60)
    levels = {one.check: one.level for one in disk.space(str(tmp_path))}
    assert levels["space"] == "warn"


def test_clock_with_an_error_of_a_year(monkeypatch, tmp_path):
    write = disk._write

    def write_old(path, data):
        write(path, data)
        os.utime(path, (0, os.stat(path).st_mtime - 365 * 86_400))

    monkeypatch.setattr(disk, "_write", write_old)
    level, what = only(disk.disk_clock(str(tmp_path)))
    assert (level, what) == ("fail", "the file system is 365 days behind this machine's clock")


@pytest.mark.parametrize("there", ["", "root", "root/heartbeats"])
def test_folder_leaves_what_was_there(tmp_path, there):
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    folder = Folder(str(tmp_path / "root"), "heartbeats/probe-1/")
    (tmp_path / "root/heartbeats/probe-1/sub").mkdir()
    (tmp_path / "root/heartbeats/probe-1/sub/x").write_bytes(b"x")
    folder.remove()
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert found == {"": set(), "root": {"root"}, "root/heartbeats": {"root", "root/heartbeats"}}[there]


def test_folder_does_not_take_what_came_meanwhile(tmp_path):
    folder = Folder(str(tmp_path / "root"), "heartbeats/probe-1/")
    (tmp_path / "root/penstock.json").write_bytes(b"{}")
    folder.remove()
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["penstock.json"]
