"""Begin the ranks of a pod of a JobSet: `python -m penstock.train.launch.jobset_pod RUN`, the run's file as JSON."""

import os
import sys

from loader.json_text import parse_json_object

from ..run_spec import RunSpec, spec_of
from .node_start import environment, run_node, torchrun


def pod_torchrun(spec: RunSpec, index: str, meeting: str) -> list[str]:
    """Return the command of a pod's ranks. index: pod of the Job, from 0. meeting: name and port of the first pod.

    The static rendezvous orders nodes by the index, as Kueue places them. c10d's would order them by arrival. torchrun
    resolves the first pod's name until it exists.
    """
    host, _, port = meeting.rpartition(":")
    nodes = [f"--nnodes={spec.node_range[1]}", f"--node-rank={index}", "--rdzv-backend=static"]
    command = torchrun(spec)
    place = command.index("--standalone")
    return [*command[:place], *nodes, f"--master-addr={host}", f"--master-port={port}", *command[place + 1 :]]


def main() -> int:
    """Run the ranks of this pod; return the exit status that the Job's policy reads."""
    spec = spec_of(parse_json_object(sys.argv[1]), "the pod's command")
    command = pod_torchrun(spec, os.environ["JOB_COMPLETION_INDEX"], os.environ["PENSTOCK_MEETING"])
    return run_node(command, environment(spec, os.environ))


if __name__ == "__main__":
    sys.exit(main())
