"""Functions that workers run in the tests of compute. Standard library only; some of them end badly."""

import ctypes
import dataclasses
import errno
import fcntl
import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

VISIBLE, PLACE = "CUDA_VISIBLE_DEVICES", "PENSTOCK_PLACE"

_damaged = False


class Unsendable:
    """Pickles, and cannot be unpickled."""

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise ValueError("not from bytes")


def double(x):
    return 2 * x


def on_gpu(seconds):
    """The GPUs that it sees, its place, its process, and the time from begin to end."""
    begun = time.monotonic()
    time.sleep(seconds)
    return [*map(os.environ.get, (VISIBLE, PLACE)), os.getpid(), begun, time.monotonic()]


_on_gpu = []


def hold_on_gpu(nbytes):
    """Takes memory of its GPU, which this process keeps. Its place, what it sees of the GPUs, and its process."""
    import torch

    _on_gpu.append(torch.ones(nbytes, dtype=torch.uint8, device=os.environ[PLACE]))
    torch.cuda.synchronize()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    return [os.environ[PLACE], os.environ[VISIBLE], torch.cuda.device_count(), uuid, os.getpid()]


def grow(items):
    items.append("grown")
    return items


def power(base, exponent):
    return base**exponent


def nothing(_):
    return None


def noise(nbytes):
    return os.urandom(1) * nbytes


def fail(x):
    if x % 3 == 1:
        raise ValueError(f"unit {x} is odd\nin two lines")
    return x


def fail_somehow(how):
    match how:
        case "memory":
            raise MemoryError("too much of it")
        case "exit":
            sys.exit("leaving")
        case "recursion":
            return fail_somehow(how)
        case "result":
            return threading.Lock()
        case "unsendable":
            return Unsendable()
        case _:
            return how


def fault_somehow(how):
    """Fails as code or machine do; or comes back."""
    match how:
        case "import":
            import no_such_library  # type: ignore[import-not-found]  # noqa: F401
        case "name":
            return no_such_name  # noqa: F821
        case "full disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "rights":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        case "files":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        case "connection":
            raise ConnectionResetError("the server went away")
        case "missing file":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return how


def without_memory(how):
    """Runs out of memory in a process that may have none."""
    if how == "machine":
        with open("/proc/self/statm", encoding="ascii") as sizes:
            nbytes = int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (nbytes + 2**24, resource.RLIM_INFINITY))
        return len(bytearray(2**30))
    if how != "healthy":
        raise MemoryError("too much of it")
    return 1


def without_memory_once(marker):
    """Lacks memory the first time only."""
    if not os.path.exists(marker):
        Path(marker).touch()
        raise MemoryError("the others have it")
    return os.getpid()


def die(how):
    """Ends the process in the way that `how` says; or comes back."""
    match how:
        case "SIGKILL" | "SIGTERM":
            os.kill(os.getpid(), signal.Signals[how])
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(7)
        case "exit beside a child":
            if os.fork():
                os._exit(7)
            threading.Event().wait()
        case "close":
            os.closerange(3, 100)
            threading.Event().wait()
        case "hang":
            threading.Event().wait()
        case "hold the lock":
            re.match(r"(a+)+$", "a" * 64 + "b")
    return how


def die_once(how_and_marker):
    """Dies the first time only."""
    how, marker = how_and_marker
    if not os.path.exists(marker):
        Path(marker).touch()
        die(how)
    return os.getpid()


def noted(number_how_and_path):
    """Its number in a file, before anything else becomes of it."""
    number, how, path = number_how_and_path
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{number}\n")
    die(how)
    return number


def alone_at_last(role_and_folder):
    """The first is killed once, when the second has begun. Says whether it is alone when it runs again."""
    role, folder = role_and_folder
    lock = os.open(Path(folder, "lock"), os.O_CREAT | os.O_RDWR)
    killed, begun = Path(folder, "killed"), Path(folder, "begun")
    if role == "first" and killed.exists():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "beside another"
        return "alone"
    if role == "first":
        _wait(begun.exists)
        killed.touch()
        die("SIGKILL")
    fcntl.flock(lock, fcntl.LOCK_SH)
    begun.touch()
    _wait(killed.exists)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # long enough for a new process to start meanwhile
    return "done"


def _wait(condition):
    while not condition():
        time.sleep(0.001)


def damage(how):
    """'damage' does no harm to itself: the next unit in the same process dies of it."""
    global _damaged
    if _damaged:
        os._exit(9)
    _damaged = how == "damage"
    return how


def pid(_):
    return os.getpid()


def modules(names):
    main = sys.modules["__main__"].__file__
    loaded = [name for name in names if name in sys.modules]
    return loaded, os.path.basename(main), sys.path, sys.flags.safe_path


def leave_files(how):
    """Temporary files, and the process ended before it could remove them."""
    path = tempfile.mkdtemp()
    Path(path, "half").write_bytes(b"written")
    print(path, flush=True)
    return path if die(how) else ""


def hold(fifo):
    """Open a FIFO here and in a child process, say one's number there, and never come back."""
    if not fifo:
        return os.getpid()
    with open(fifo, "w", encoding="ascii") as there:
        subprocess.Popen(["sleep", "1000"], pass_fds=[there.fileno()])
        there.write(f"{os.getpid()}\n")
        there.flush()
        return die("hang")


def hold_the_lock(fifo):
    """The same, with the interpreter's lock."""
    with open(fifo, "w", encoding="ascii") as there:
        there.write(f"{os.getpid()}\n")
        there.flush()
        return die("hold the lock")


def meet(barrier_folder_and_name):
    """Two units that each wait for the other: both run at once, or neither comes back."""
    folder, mine, other = barrier_folder_and_name
    os.mkfifo(Path(folder, mine))
    # Opening a FIFO waits for its other end.
    first, second = sorted((mine, other))
    _wait(lambda: Path(folder, first).exists() and Path(folder, second).exists())
    with open(Path(folder, first), "r" if mine == first else "w", encoding="ascii"):
        return mine


def noise_or_meet(unit):
    return noise(unit) if isinstance(unit, int) else meet(unit)


def speak(text):
    print(text)  # no flush
    return text


def threads_for_products(side):
    """Threads that numpy has started, beside those that were there."""
    before = len(os.listdir("/proc/self/task"))
    import numpy

    square = numpy.ones((side, side))
    assert (square @ square)[0, 0] == side
    return len(os.listdir("/proc/self/task")) - before


@dataclasses.dataclass(frozen=True)
class Named:
    """Stands in an annotation below."""

    held: tuple = ()


@dataclasses.dataclass(frozen=True)
class Unnamed:
    """Stands in none."""

    held: tuple = ()


def answer(what) -> Named | None:
    return {"named": Named((1, (Named(),))), "unnamed": Unnamed(), "inside": Named((Unnamed(),))}[what]


def environment(_):
    """Of this process, as it sees it and as it was started."""
    started = Path("/proc/self/environ").read_bytes().decode().split("\0")
    return dict(os.environ), dict(one.split("=", 1) for one in started if one)


def speak_as_worker(header_and_body):
    """What a file might make a decoder do: speak in the worker's place."""
    sock = sys.modules["__main__"].SOCKET
    sock.sendall(b"".join(header_and_body))
    die("hang")
