"""Mounted file systems: which one holds a folder, and whether its bytes come over a network."""

import os
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
"""Buckets mounted as disks."""


class Mount:
    """A mounted file system."""

    # (no dataclass: a loader of a folder would wait for its functions to be compiled)
    def __init__(self, *, point: str, kind: str, device: str) -> None:
        self.point = point
        """Mount point, a folder."""
        self.kind = kind
        """File system type: 'ext4', 'nfs4', 'fuse.s3fs'."""
        self.device = device
        """Mounted device. Some FUSE programs give their name only here."""


def find_mount(folder: str, table: str | None = None) -> Mount | None:
    """Return the mount that holds `folder`, or None. table: the text of /proc/self/mountinfo."""
    if table is None:
        try:
            table = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return None
    path = os.path.realpath(folder)
    mount: Mount | None = None
    for line in table.splitlines():
        # proc(5): the mount point is the fifth column. A variable number of columns ends in "-"; then come the type and
        # the device.
        mount_columns, _, file_system_columns = line.partition(" - ")
        point = _unescape(mount_columns.split()[4])
        is_below = path == point or path.startswith(point.rstrip("/") + "/")
        # `>=`: of two mounts at one point, the later hides the other.
        if is_below and (mount is None or len(point) >= len(mount.point)):
            kind, device = file_system_columns.split()[:2]
            if kind == "fuse" and "/" not in device:
                kind = f"fuse.{device}"  # some FUSE programs give their name only as the device
            mount = Mount(point=point, kind=kind, device=_unescape(device))
    return mount


def _unescape(text: str) -> str:
    r"""Return a mountinfo field without escapes, such as \040 for a space."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def is_network_folder(folder: str, table: str | None = None) -> bool:
    """Return whether a folder's files come over a network; False if unknown. table: as for `find_mount`."""
    mount = find_mount(folder, table)
    return mount is not None and mount.kind in NETWORK | BUCKETS
