"""Postgres, a server process of its own; Debian's package, which scripts/install-servers.sh brings."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.ports import free_port

_USER = "postgres"
_PASSWORD = "PLANTEDsecretPLANTED"


class Postgres:
    """One cluster in a folder of its own. It refuses to run as root, and becomes the package's own user there."""

    def __init__(self) -> None:
        # Not in one of pytest's folders: those are for their user alone, and each run of pytest sees to it again.
        folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        self._folder, self._data = folder, folder / "data"
        self.port = free_port()
        self._runs = False
        if os.geteuid() == 0:
            shutil.chown(folder, _USER, _USER)
        secret = folder / "password"
        secret.write_text(_PASSWORD, encoding="utf-8")
        if os.geteuid() == 0:
            shutil.chown(secret, _USER, _USER)
        initdb = [
            "initdb",
            "-D",
            str(self._data),
            "-U",
            "dagster",
            "-A",
            "scram-sha-256",
            f"--pwfile={secret}",
            "-N",
        ]
        subprocess.run(self._as_user(initdb), check=True, capture_output=True, cwd=folder)

    @property
    def url(self) -> str:
        """With the driver's name, as deploy/ says."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Of another database than the one that every cluster begins with."""
        return f"postgresql+psycopg2://dagster:{_PASSWORD}@127.0.0.1:{self.port}/{database}"

    @property
    def environment(self) -> dict[str, str]:
        """What Postgres' own programs go by, and where they are."""
        return {
            "PATH": os.pathsep.join([*_programs(), os.environ.get("PATH", "")]),
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": "dagster",
            "PGPASSWORD": _PASSWORD,
        }

    def start(self) -> None:
        """Returns when it takes connections."""
        options = f"-c port={self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        command = [
            "pg_ctl",
            "-D",
            str(self._data),
            "-l",
            str(self._folder / "log"),
            "-o",
            options,
            "-w",
            "-t",
            "120",
        ]
        done = subprocess.run(
            self._as_user([*command, "start"]), capture_output=True, text=True, check=False, cwd=self._folder
        )
        log = self._folder / "log"
        self._runs = done.returncode == 0
        assert self._runs, done.stderr + (log.read_text(encoding="utf-8")[-3000:] if log.exists() else "")

    def kill(self) -> None:
        """SIGKILL to all of its processes, as when the machine is gone."""
        lines = (self._data / "postmaster.pid").read_text(encoding="utf-8").split()
        postmaster = int(lines[0])
        os.kill(postmaster, signal.SIGSTOP)  # it starts nobody while they are counted
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(postmaster)], capture_output=True, text=True, check=False
        ).stdout.split()
        everybody = [postmaster, *map(int, children)]
        for number in everybody:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._runs = False
        # Their shared memory keeps another one from starting, and so does a dead postmaster that nobody waited for.
        while any(Path(f"/proc/{number}").exists() for number in everybody):
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends what there is of it, data and all."""
        # pg_ctl signals the number that a killed postmaster left in its file, whoever has it now.
        if self._runs:
            subprocess.run(
                self._as_user(["pg_ctl", "-D", str(self._data), "-m", "immediate", "stop"]),
                check=False,
                capture_output=True,
                cwd=self._folder,
            )
        shutil.rmtree(
            self._folder, ignore_errors=True
        )  # where it failed to stop, something may still write there

    def _as_user(self, command: list[str]) -> list[str]:
        program = shutil.which(command[0], path=os.pathsep.join([*_programs(), os.environ.get("PATH", "")]))
        if program is None:
            raise FileNotFoundError(f"{command[0]} is not there; run scripts/install-servers.sh")
        become = (
            ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"] if os.geteuid() == 0 else []
        )
        return [*become, program, *command[1:]]


def _programs() -> list[str]:
    """Folders of Debian's package, the newest first."""
    return [str(folder) for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A fresh one that is up; it ends with the block."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()
