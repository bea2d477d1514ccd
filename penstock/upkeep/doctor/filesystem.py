"""Check a folder's file system on Linux: type, links, renames, durable writes and space."""

import os
import resource
import shutil
import threading
import time
from collections.abc import Iterator

from loader.storage.disk.folder_files import fsync_directory
from loader.storage.disk.mounts import BUCKETS, NETWORK, find_mount

from ...units import number, share, size
from .clock import compare_clocks
from .finding import Finding, fail, note, ok, warn

VOLATILE = {"tmpfs", "ramfs"}
LAYERED = {"overlay", "aufs", "fuse.fuse-overlayfs"}
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "apfs", "hfs", "ufs"}


FEW_BYTES = 20 * 2**30
FEW_INODES = 100_000
FEW_FILES = 1024
RENAMES = 300
FSYNCS = 5
SLOW_FSYNC_S = 0.1


def file_system(folder: str) -> Iterator[Finding]:
    """Yield a finding about the file system's type and its known faults."""
    check = "file system"
    mount = find_mount(folder)
    if mount is None:
        yield note(check, "this system does not tell what lies under a folder (no /proc/self/mountinfo)")
        return
    where = f"{mount.kind} at {mount.point}"
    if mount.kind in BUCKETS:
        what = f"{where}: a bucket that is mounted as a disk, whose creates and renames are not atomic"
        yield fail(check, what, "use the bucket by its URL: s3://, gs://, az://")
    elif mount.kind in NETWORK:
        what = f"{where} from {mount.device}: a network file system; the findings below hold only for this client"
        do = "mount it with close-to-open consistency (no `nolock`, no long `actimeo`), or keep the root in a bucket"
        yield warn(check, what, do)
    elif mount.kind in VOLATILE:
        yield warn(
            check, f"{where}: memory, gone with the next restart", "keep roots that shall last on a disk"
        )
    elif mount.kind in LAYERED:
        yield warn(
            check, f"{where}: a container's own layer, gone with the container", "mount a volume for the root"
        )
    elif mount.kind in LOCAL:
        yield ok(check, f"{where}, a local disk")
    else:
        what = f"{where} from {mount.device}: of a kind that is not known here: the findings below are of this client"
        do = "find out whether other machines write there too, and what they see when; else keep the root in a bucket"
        yield warn(check, what, do)


def space(folder: str) -> Iterator[Finding]:
    """Yield findings about free bytes and inodes, and the limit on open files."""
    usage = shutil.disk_usage(folder)
    table = os.statvfs(folder)
    what = f"{size(usage.free)} of {size(usage.total)} are free ({share(usage.free, usage.total)})"
    # btrfs and some network disks count no inodes: f_files is 0.
    few_inodes = table.f_files and table.f_favail < FEW_INODES
    if few_inodes:
        what += f", and {table.f_favail:,} inodes"
    if usage.free < FEW_BYTES or few_inodes:
        yield warn(
            "space",
            what,
            "free some or choose another disk: a writer that meets a full disk stops, and publishes nothing",
        )
    else:
        yield ok("space", what)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files < FEW_FILES and files != resource.RLIM_INFINITY:
        yield warn("open files", f"a process may open {files} files", "raise it: `ulimit -n 65536`")


def links(folder: str) -> Iterator[Finding]:
    """Check hard links, which create-only writes need."""
    source = os.path.join(folder, "link-from")
    target = os.path.join(folder, "link-to")
    _write(source, b"linked")
    elsewhere = "keep the root on a POSIX file system (ext4, xfs, zfs, apfs) or in a bucket"
    try:
        os.link(source, target)
    except OSError as error:
        yield fail("links", f"no hard links ({error.strerror}): a create-only write is impossible", elsewhere)
        return
    try:
        os.link(source, target)
    except FileExistsError:
        yield ok("links", "link() makes a name once, and refuses a second time")
    else:
        yield fail("links", "link() replaced a name that was there", elsewhere)


def durability(folder: str) -> Iterator[Finding]:
    """Check fsync on files and folders. Reports the median of five times."""
    times = []
    for turn in range(FSYNCS):
        begun = time.perf_counter()
        try:
            _write(os.path.join(folder, f"sync-{turn}"), b"x" * 4096)
            fsync_directory(folder)
        except OSError as error:
            what = f"fsync fails ({error.strerror}): what was published may be lost in a power cut"
            yield fail("fsync", what, "look at the mount's options and at the disk's health (`dmesg`)")
            return
        times.append(time.perf_counter() - begun)
    # The median: another process may delay one of the writes.
    middle = sorted(times)[FSYNCS // 2]
    what = f"a durable write of 4 KiB takes {number(1e3 * middle, 2)} ms"
    if middle > SLOW_FSYNC_S:
        yield warn(
            "fsync",
            what,
            "publishing makes some ten of them: larger parts, fewer versions, or a disk that is less busy",
        )
    else:
        yield ok("fsync", what)


def renames(folder: str) -> Iterator[Finding]:
    """Check that readers of a repeatedly replaced file always see it whole."""
    target = os.path.join(folder, "renamed")
    # Many pages long, so that a torn read can show both.
    data = (b"a" * 65_536, b"b" * 65_536)
    _write(target, data[0])
    torn: list[str] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set() and not torn:
            try:
                with open(target, "rb") as file:
                    if (content := file.read()) not in data:
                        torn.append(f"a reader saw {len(content)} bytes of both")
            except OSError as error:
                torn.append(f"a reader met {error.strerror!r}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for turn in range(RENAMES):
            if torn:
                break
            with open(target + ".new", "wb") as file:
                file.write(data[turn % 2])
            os.replace(target + ".new", target)
    finally:
        done.set()
        watcher.join()
    if torn:
        yield fail(
            "renames",
            f"a rename is not atomic: {torn[0]}",
            "keep the root on a local POSIX file system or in a bucket",
        )
    else:
        yield ok("renames", f"a file that is replaced {RENAMES} times is whole at every moment")


def names(folder: str) -> Iterator[Finding]:
    """Check that names which differ by case or Unicode composition are distinct."""
    check = "names"
    _write(os.path.join(folder, "Case"), b"")
    if os.path.exists(os.path.join(folder, "cASE")):
        do = "keep the root on a case-sensitive file system: fields or keys that differ only by case are one file here"
        yield warn(check, "upper and lower case are one", do)
        return
    _write(os.path.join(folder, "\u00fc"), b"")
    # HFS+ and some network disks store another composition than the program's.
    if os.path.exists(os.path.join(folder, "u\u0308")) or "\u00fc" not in os.listdir(folder):
        yield warn(
            check,
            "names come back composed differently",
            "keep the root on a file system that keeps names (ext4, xfs, zfs)",
        )
        return
    yield ok(check, "names are kept as they are written, upper and lower case apart")


def disk_clock(folder: str) -> Iterator[Finding]:
    """Check the file system's clock. A network disk uses its server's clock."""
    path = os.path.join(folder, "clock")
    before = time.time()
    _write(path, b"")
    yield compare_clocks(os.stat(path).st_mtime - before, "the file system")


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
