"""A Slurm of four nodes on this machine, for tests marked `slurm`; scripts/install-slurm.sh brings its daemons.

Everything runs as the user of the tests, on ports of its own, without munge. Without `accounts` there is no database of
accounts, and `sacct` fails as it does on clusters that keep none.
"""

import getpass
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.patience import PATIENCE_S, until
from tests.servers.ports import free_port
from tests.servers.processes import command_line, command_name, end, environment_bytes, parent_pid
from tests.servers.slurm_accounts import Accounts

CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
{memory}
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=1
ReturnToService=2
MpiDefault=none
SlurmdTimeout=6
SlurmctldTimeout=5
MessageTimeout=4
KillWait={kill_wait_s}
MinJobAge=30
MaxArraySize=1001
GresTypes=gpu
SlurmdParameters=config_overrides
{accounting}
{nodes}
PartitionName=batch Nodes=m[1-4] Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory={memory_mb} "
    "Gres=gpu:fake:2 State=UNKNOWN"
)
GRES = """\
Name=gpu Type=fake File=/dev/null
Name=gpu Type=fake File=/dev/zero
"""
"""GPUs that do not exist: Slurm counts them, and tells a job which it has."""
WITHOUT_LIMITS = """\
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
"""
MEMORY_LIMITS = """\
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=4000
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
JobAcctGatherParams=OverMemoryKill
"""
"""Every two seconds slurmstepd adds up the resident memory of a step's processes, and kills one above its limit."""
WITHOUT_ACCOUNTS = "AccountingStorageType=accounting_storage/none"
NODES = ("m1", "m2", "m3", "m4")


class Slurm:
    """Four nodes of two processors, as processes that a test may kill.

    folder: empty. accounts: slurmdbd, accounts and QOS (tests/servers/slurm_accounts.py). memory_limits: jobs that take
    more memory than they asked for are killed.
    """

    def __init__(self, folder: Path, *, accounts: bool = False, memory_limits: bool = False) -> None:
        self.folder, self.user = folder, getpass.getuser()
        # A socket's path has at most 107 bytes: pytest's folders may be too long.
        self._sockets = tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True)
        self.accounts = Accounts(folder, self._sockets.name) if accounts else None
        self.conf = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        host = socket.gethostname().partition(".")[0]
        (folder / "state").mkdir()
        memory_mb = 8000 if memory_limits else 2000
        nodes = "\n".join(
            NODE.format(name=name, host=host, port=free_port(), memory_mb=memory_mb) for name in NODES
        )
        told = {"host": host, "user": self.user, "folder": folder, "port": free_port()}
        told["sockets"] = self._sockets.name
        told["accounting"] = self.accounts.slurm_conf if self.accounts else WITHOUT_ACCOUNTS
        told["memory"] = MEMORY_LIMITS if memory_limits else WITHOUT_LIMITS
        told["kill_wait_s"] = 20 if accounts else 2
        (folder / "gres.conf").write_text(GRES)
        self.conf.write_text(CONF.format(nodes=nodes, **told))

    def start(self) -> None:
        """Start all daemons and wait until the nodes are idle."""
        if self.accounts:
            self.accounts.start(self.environment)
        self.start_head()
        for name in NODES:
            self.start_node(name)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until no node has a job."""
        until(lambda: self.told("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "4")

    def start_head(self) -> None:
        self._start("slurmctld", "slurmctld", "-D")

    def start_node(self, name: str) -> None:
        """As a machine that boots: Slurm learns at once that the node's jobs are gone."""
        Path(self._sockets.name, name).mkdir(exist_ok=True)
        self._start(name, "slurmd", "-D", "-b", "-N", name)

    def kill_head(self) -> None:
        """As a power cut."""
        self._kill("slurmctld")

    def wait_until_saved(self) -> None:
        """Wait until slurmctld has saved that the running jobs began: one that dies before forgets it."""
        asked_s = time.time()
        job = self.told("squeue", "--noheader", "--states=RUNNING", "-o", "%A").split()[0]
        self.told("scontrol", "update", f"jobid={job}", "nice=0")  # it saves within seconds of a change
        until(lambda: (self.folder / "state" / "job_state").stat().st_mtime > asked_s)

    def resume(self) -> None:
        """Give drained nodes back, as an operator does. A head that was killed before it saved that a job began starts
        it a second time, and drains the node where it still runs."""
        drained = set(self.told("sinfo", "-h", "-N", "-t", "drain", "-o", "%N").split())
        if drained:
            self.told("scontrol", "update", f"nodename={','.join(sorted(drained))}", "state=resume")

    def kill_node(self, name: str) -> None:
        """As a power cut: the daemon, what watches its jobs, and the jobs."""
        self._kill(name)
        self._end(self.processes(name))
        until(lambda: not self.processes(name))

    def processes(self, node: str | None = None) -> set[int]:
        """Return the processes of jobs, of one node or of all."""
        marks = {f"SLURM_CONF={self.conf}".encode()}
        marks.add(b"SLURM_JOB_ID=" if node is None else f"SLURMD_NODENAME={node}".encode())
        found = set()
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                environment = environment_bytes(int(entry))
                if all(mark in environment for mark in marks):
                    found.add(int(entry))
        return found

    def scripts(self) -> set[int]:
        """Return the processes of batch scripts, without their subshells: these have the same command line."""
        with_script = {pid for pid in self.processes() if b"slurm_script" in command_line(pid)}
        return {pid for pid in with_script if command_name(parent_pid(pid)) == "slurmstepd"}

    def end_jobs(self) -> None:
        """End all jobs at once, and wait until Slurm lists none."""
        mine = f"--user={self.user}"
        self.told("scancel", "--state=PENDING", mine)
        self.told("scancel", "--signal=KILL", "--full", mine)
        self.told("scancel", mine)
        until(lambda: not self.told("squeue", "--noheader", "--all").strip())

    def told(self, *command: str) -> str:
        """Return what a command of Slurm writes, empty where it fails."""
        ended = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return ended.stdout if not ended.returncode else ""

    def stop(self) -> None:
        """End every daemon and every job."""
        for name in list(self._daemons):
            self._kill(name)
        self._end(self.processes())
        if self.accounts:
            self.accounts.stop()
        self._sockets.cleanup()

    def _end(self, jobs: set[int]) -> None:
        """End the processes of jobs; before them those that would report their end."""
        watchers = {parent for parent in map(parent_pid, jobs) if command_name(parent) == "slurmstepd"}
        for pid in [*watchers, *jobs]:
            end(pid)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()


@contextmanager
def slurm(folder: Path, *, accounts: bool = False, memory_limits: bool = False) -> Iterator[Slurm]:
    """Yield a fresh cluster; it ends with the block."""
    cluster = Slurm(folder, accounts=accounts, memory_limits=memory_limits)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
