"""Slurm's accounting on this machine: slurmdbd over a MariaDB of its own, with accounts, users and QOS.

Both are processes of the tests' user on ports of the loopback, and end with the cluster.
"""

import getpass
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.servers.ports import free_port

CONF = """\
AuthType=auth/none
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={store_port}
StorageUser={user}
StorageLoc=slurm_acct
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
"""
SLURM_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
PriorityType=priority/multifactor
PriorityWeightQOS=1000
PreemptType=preempt/qos
PreemptMode=REQUEUE
JobRequeue=1
TopologyPlugin=topology/tree
"""
TOPOLOGY = """\
SwitchName=s1 Nodes=m1,m3
SwitchName=s2 Nodes=m2,m4
SwitchName=s0 Switches=s[1-2]
"""
GRACE_S = 40
"""GraceTime of the QOS "low"; "abrupt" has 0."""
SETUP = (
    "add cluster tests",
    f"add qos low priority=1 preemptmode=requeue gracetime={GRACE_S}",
    "add qos abrupt priority=1 preemptmode=requeue gracetime=0",
    "add qos high priority=1000 preempt=low,abrupt",
    "add account team",
    "add account vision",
    "add user {user} account=team,vision qos=normal,low,abrupt,high defaultqos=normal",
    "modify user {user} set defaultaccount=team",
)
MARIADB = (
    *("mariadbd", "--no-defaults", "--bind-address=127.0.0.1", "--skip-grant-tables", "--skip-log-bin"),
    *(
        "--innodb-buffer-pool-size=32M",
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=0",
    ),
)


class Accounts:
    """slurmdbd and its MariaDB. folder: the cluster's. sockets: folder with a short path."""

    def __init__(self, folder: Path, sockets: str) -> None:
        self._folder, self._sockets, self._user = folder, sockets, getpass.getuser()
        self._port, self._store_port = free_port(), free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        conf = folder / "slurmdbd.conf"
        conf.touch(mode=0o600)  # slurmdbd refuses a file that others may read
        (folder / "topology.conf").write_text(TOPOLOGY)
        conf.write_text(
            CONF.format(user=self._user, folder=folder, port=self._port, store_port=self._store_port)
        )

    @property
    def slurm_conf(self) -> str:
        """Lines of slurm.conf."""
        return SLURM_CONF.format(port=self._port)

    def start(self, environment: dict[str, str]) -> None:
        """Start both, and add cluster, accounts, user and QOS."""
        data = self._folder / "mariadb"
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={self._user}"]
        subprocess.run(
            [*install, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"],
            check=True,
            capture_output=True,
        )
        places = (
            f"--datadir={data}",
            f"--socket={self._sockets}/db.sock",
            f"--pid-file={self._folder}/db.pid",
        )
        self._start("mariadbd", *MARIADB, *places, f"--port={self._store_port}", f"--user={self._user}")
        self._await(lambda: socket.create_connection(("127.0.0.1", self._store_port)).close())
        self._start("slurmdbd", "slurmdbd", "-D", environment=environment)
        self._await(lambda: self.manage("list", "cluster", environment=environment))
        for line in SETUP:
            self.manage(*line.format(user=self._user).split(), environment=environment)

    def manage(self, *words: str, environment: dict[str, str]) -> None:
        """Change accounts, users or QOS."""
        subprocess.run(
            ["sacctmgr", "-i", *words], env=environment, check=True, capture_output=True, timeout=600
        )

    def stop(self) -> None:
        """End both."""
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self.processes.clear()

    def _start(self, name: str, *command: str, environment: dict[str, str] | None = None) -> None:
        with (self._folder / f"{name}.out").open("ab") as out:
            self.processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )

    def _await(self, succeeds: Callable[[], None]) -> None:
        end = time.monotonic() + 600
        while True:
            try:
                return succeeds()
            except (OSError, subprocess.CalledProcessError):
                assert time.monotonic() < end, f"it does not answer; see {self._folder}"
                time.sleep(0.05)
