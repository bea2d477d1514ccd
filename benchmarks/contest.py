"""The parent's side: contestants as processes, of which one runs at a time while all others are stopped."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LISTS = Path(__file__).parent / "peers"
ENVIRONMENTS = ROOT / ".peers"

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""torch's own threads, for everybody. With two, each array that is put together in the contestant's own process waits,
spinning, for whoever has the other core."""


class PeerError(Exception):
    """What a contestant answered instead of a measurement."""


SITE: list[Path] = []
"""A folder with the packages of all peers, in place of their environments; or nothing."""


BEFORE = "before"
"""Peer: penstock itself, as another checkout has it."""

CHECKOUTS: dict[str, Path] = {}
"""Peer -> folder that its process starts in, and so imports from."""


def compare_with(checkout: Path) -> None:
    """Add the penstock of another checkout to the peers.

    Raises: PeerError, if the folder holds no penstock or no native module of it.
    """
    if not list(checkout.glob("loader/native/_native*.so")):
        raise PeerError(f"{checkout}: no loader/native/_native*.so; run `make setup` there first")
    CHECKOUTS[BEFORE] = checkout.resolve()


def use_site(folder: Path) -> None:
    """Have all contestants run by this Python, with the packages of the folder before its own."""
    SITE[:] = [folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def python_of(peer: str) -> Path:
    """The Python of a peer's environment; the project's own for what needs no other."""
    if SITE or not (LISTS / f"{peer}.txt").exists():
        return Path(sys.executable)
    return ENVIRONMENTS / peer / "bin" / "python"


def failure_of(peer: str) -> str:
    """Why a peer has no environment to run in, or ""."""
    failed = ENVIRONMENTS / peer / "failed.txt"
    if failed.exists() and not SITE:
        return f"does not install: {failed.read_text()}"
    return "" if python_of(peer).exists() else "not installed: python -m benchmarks.peers"


class Runner:
    """A contestant's process, with all that it starts in a process group of its own."""

    def __init__(self, peer: str, log: Path, module: str = "benchmarks.contestant") -> None:
        """module: what is run, with the peer's name. Raises: PeerError where the peer's environment is not there."""
        if failed := failure_of(peer):
            raise PeerError(failed)
        self._log = log.open("ab")
        peer_module = "penstock" if peer == BEFORE else peer
        self._process = subprocess.Popen(
            [python_of(peer), "-m", module, peer_module],
            cwd=CHECKOUTS.get(peer, ROOT),  # `python -m` imports from here first
            env=os.environ | ONE_THREAD,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            start_new_session=True,
        )

        # Whatever ends this process, nobody else would end a group that is stopped.
        self._guard = subprocess.Popen(
            ["sh", "-c", "read _; kill -s KILL -- -$0", str(self.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, *, within_s: float = 60, **given: Any) -> Any:
        """The reply to a request. Raises: PeerError, also where none came in time; the group is ended then."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **given}).encode() + b"\n")
            if not select.select([self._process.stdout], [], [], within_s)[0]:
                self._signal(signal.SIGKILL)
                raise PeerError(f"no answer to {do!r} within {within_s:g} s")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise PeerError(f"its process ended with {self._process.wait()} in {do!r}")
        reply = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the group run meanwhile; it is stopped again behind it, so that it takes nothing from the next one."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the process, and then whatever of its group is left."""
        self._signal(signal.SIGCONT)
        with suppress(PeerError):
            self.ask("close")
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._guard.kill()
        self._guard.communicate()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)
