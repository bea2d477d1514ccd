"""Which file system a folder lies on, as Linux tells it."""

import os
from dataclasses import dataclass
from pathlib import Path

NETWORK = {
    *(
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "beegfs",
        "gpfs",
        "glusterfs",
        "ncpfs",
        "wekafs",
        "panfs",
        "pvfs2",
    ),
    *("virtiofs", "fuse.seaweedfs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.cephfs", "fuse.juicefs", "fuse.moosefs"),
}
BUCKETS = {
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.rclone",
    "fuse.goofys",
    "fuse.mountpoint-s3",
    "fuse.blobfuse",
    "fuse.blobfuse2",
    "fuse.geesefs",
}
"""Buckets mounted as if they were disks."""
VOLATILE = {"tmpfs", "ramfs"}
LAYERED = {"overlay", "aufs", "fuse.fuse-overlayfs"}
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "apfs", "hfs", "ufs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """kind: 'ext4', 'nfs4', 'fuse.s3fs'; device: what is mounted there. (Some programs of FUSE say their name as the
    device alone.)"""

    point: str
    kind: str
    device: str


def mount_of(folder: str, table: str | None = None) -> Mount | None:
    """The mount that holds `folder`; None where the system does not tell. table: the text of /proc/self/mountinfo."""
    if table is None:
        try:
            table = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return None
    path, found = os.path.realpath(folder), None
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        point = _unescaped(left.split()[4])
        below = path == point or path.startswith(point.rstrip("/") + "/")
        if below and (found is None or len(point) >= len(found.point)):  # of equals the later one lies on top
            kind, device = right.split()[:2]
            kind = f"fuse.{device}" if kind == "fuse" and "/" not in device else kind
            found = Mount(point=point, kind=kind, device=_unescaped(device))
    return found


def _unescaped(text: str) -> str:
    """mountinfo writes blanks as \\040."""
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text
