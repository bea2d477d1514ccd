"""Begin the ranks of a pod of a JobSet: `python -m penstock.train.launch.jobset_pod RUN`, the run's file as JSON.

Ranks that fail end the pod after a wait, see `pod_failures`.
"""

import os
import sys

import loader
from loader.json_text import parse_json_object

from ..run import AGAIN
from ..run_folder import RunFolder
from ..run_spec import RunSpec, spec_of
from .node_start import environment, run_node, torchrun
from .pod_failures import failure_status


def pod_torchrun(spec: RunSpec, index: str, meeting: str) -> list[str]:
    """Return the command of a pod's ranks. index: pod of the Job, from 0. meeting: name and port of the first pod.

    The static rendezvous orders nodes by the index, as Kueue places them. c10d's would order them by arrival. torchrun
    resolves the first pod's name until it exists.
    """
    host, _, port = meeting.rpartition(":")
    nodes = [f"--nnodes={spec.node_range[1]}", f"--node-rank={index}", "--rdzv-backend=static"]
    command = torchrun(spec, tee=True)
    place = command.index("--standalone")
    return [*command[:place], *nodes, f"--master-addr={host}", f"--master-port={port}", *command[place + 1 :]]


def main() -> int:
    """Run the ranks of this pod; return the exit status that the Job's policy reads."""
    spec = spec_of(parse_json_object(sys.argv[1]), "the pod's command")
    command = pod_torchrun(spec, os.environ["JOB_COMPLETION_INDEX"], os.environ["PENSTOCK_MEETING"])
    status, line = run_node(command, environment(spec, os.environ))
    if status in (0, AGAIN):
        return status
    folder = RunFolder(loader.Root(spec.record).store, spec.run)
    submission = os.environ.get("PENSTOCK_SUBMISSION", "0" * 16)  # none by an earlier release
    restarts = int(os.environ.get("PENSTOCK_ATTEMPT") or 0)
    return failure_status(folder, submission, restarts, line, status)


if __name__ == "__main__":
    sys.exit(main())
