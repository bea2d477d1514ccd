"""Runs of a code location. Other code locations share its databases, and may be on other machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from loader.json_text import parse_json_object

_LABEL = ".dagster/repository"  # Dagster's pages filter by it
_SERVER = ".dagster/grpc_info"  # the default launcher's code server


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """A code location in Dagster."""

    label: str
    """"<repository>@<location>"."""
    host: str = ""
    """Host of its code server, or ""."""
    port: int | None = None
    """Port of its code server, or None."""


def sensor_location(context: dg.SensorEvaluationContext) -> CodeLocation | None:
    """Return the code location that evaluates a sensor; None without a workspace."""
    origin = context.code_location_origin
    if origin is None or context.repository_name is None:
        return None
    return CodeLocation(
        label=f"{context.repository_name}@{origin.location_name}",
        host=getattr(origin, "host", ""),
        port=getattr(origin, "port", None),
    )


def sensor_label(context: dg.SensorEvaluationContext) -> str:
    """Return the label of the code location that evaluates a sensor; "" without a workspace."""
    location = sensor_location(context)
    if location is None:
        return ""
    return location.label


def location_label(run: dg.DagsterRun) -> str:
    """Return the label of a run's code location, or ""."""
    if run.remote_job_origin:
        return run.remote_job_origin.repository_origin.get_label()
    return ""


def location_tags(label: str) -> Mapping[str, str]:
    """Return tags that select a code location's runs; {} for "", which selects all runs."""
    if label:
        return {_LABEL: label}
    return {}


def is_server_here(run: dg.DagsterRun, here: CodeLocation) -> bool:
    """Return whether the code server that started the run was on this machine. here: the sensor's location."""
    try:
        server = parse_json_object(run.tags.get(_SERVER, ""))
        port = server.get("port")
        # A server with a port counts as here only if it is the sensor's own.
        if port is not None:
            return port == here.port and server.get("host") == here.host
        if here.port is not None:
            return False
        # Without a port, the server listens on a Unix socket of this machine.
        return Path(server["socket"]).exists()
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


PARTITION = "dagster/partition"
_NOT_STARTED = dg.DagsterRunStatus.NOT_STARTED
LAUNCHED = tuple(status for status in dg.DagsterRunStatus if status != _NOT_STARTED)
"""Statuses of launched runs. A tick that loses its database before the launch leaves an unlaunched one, which Dagster
launches when its run key is requested again.
"""


def is_last(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a launched run is the newest of its job, code location and partition."""
    tags = dict(location_tags(location_label(run)))
    if PARTITION in run.tags:
        tags[PARTITION] = run.tags[PARTITION]
    same_runs = dg.RunsFilter(job_name=run.job_name, tags=tags, statuses=LAUNCHED)
    newest = instance.get_runs(same_runs, limit=1)
    if not newest:
        return False
    return newest[0].run_id == run.run_id
