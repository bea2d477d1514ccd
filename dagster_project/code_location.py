"""The code location of a run: other locations share its databases, and may live on other machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from loader.json_text import parse_json_object

_LABEL = ".dagster/repository"  # by which Dagster's pages filter; kept beside the run's tags
_SERVER = ".dagster/grpc_info"  # of the default launcher: the code server that it asked


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """A code location of Dagster."""

    label: str
    """"<repository>@<location>"."""
    host: str = ""
    """Host of its code server; "" for one that Dagster starts."""
    port: int | None = None
    """Port of its code server; None for one that Dagster starts."""


def code_location_of(context: dg.SensorEvaluationContext) -> CodeLocation | None:
    """Return the code location that evaluates a sensor; None by hand, without a workspace."""
    origin = context.code_location_origin
    if origin is None or context.repository_name is None:
        return None
    told = getattr(origin, "host", ""), getattr(origin, "port", None)
    return CodeLocation(f"{context.repository_name}@{origin.location_name}", *told)


def label_of(run: dg.DagsterRun) -> str:
    """Return the label of a run's code location, "" for a run that was started without one."""
    return run.remote_job_origin.repository_origin.get_label() if run.remote_job_origin else ""


def tags_of(label: str) -> Mapping[str, str]:
    """Return tags that filter runs of one code location; all runs for ""."""
    return {_LABEL: label} if label else {}


def is_server_here(run: dg.DagsterRun, here: CodeLocation) -> bool:
    """Return whether the code server that started the run is, or was, on this machine, and so the run's process."""
    try:
        told = parse_json_object(run.tags.get(_SERVER, ""))
        if told.get("port") is not None:
            return (told.get("host"), told["port"]) == (here.host, here.port)
        return here.port is None and Path(told["socket"]).exists()
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


__all__ = ["CodeLocation", "code_location_of", "is_server_here", "label_of", "tags_of"]
