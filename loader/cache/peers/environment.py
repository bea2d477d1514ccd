"""The variables that a cluster's cache reads: its token, the Slurm job, a node's block, the ranks' meeting point."""

import os
from collections.abc import Mapping
from typing import NamedTuple

TOKEN_VARIABLE = "PENSTOCK_CACHE_TOKEN"
BLOCK_VARIABLE = "PENSTOCK_NODE_BLOCK"


class SlurmJob(NamedTuple):
    """The Slurm job of this process."""

    id: int
    nodes: str
    """Compressed list of its nodes, such as n[1-4]."""


def token_text() -> str | None:
    """Return the token of the environment; None without one."""
    return os.environ.get(TOKEN_VARIABLE)


def slurm_job(environ: Mapping[str, str] | None = None) -> SlurmJob | None:
    """Return the Slurm job of this process; None outside one."""
    environ = os.environ if environ is None else environ
    nodes = environ.get("SLURM_JOB_NODELIST", "")
    job_id = environ.get("SLURM_JOB_ID", "")
    if not nodes or not job_id.isdigit():
        return None
    return SlurmJob(int(job_id), nodes)


def slurm_node() -> str | None:
    """Return Slurm's name of this node; None outside a job."""
    return os.environ.get("SLURMD_NODENAME") or None


def node_block() -> str:
    """Return the block of this node, whose nodes may fail together: BLOCK_VARIABLE, else Slurm's; "" if unknown."""
    block = os.environ.get(BLOCK_VARIABLE, "")
    if block:
        return block
    # Such as s0.s4.n17: the switches above a node, then its name.
    address = os.environ.get("SLURM_TOPOLOGY_ADDR", "")
    switches, _, _ = address.rpartition(".")
    return switches


def master_host() -> str:
    """Return the host at which the ranks meet; empty without a launcher."""
    return os.environ.get("MASTER_ADDR", "")


def server_environment(path: str) -> dict[str, str]:
    """Return the environment of a server process. path: where it imports from."""
    return {**os.environ, "PYTHONPATH": path}
