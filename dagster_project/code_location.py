"""Which runs of an instance are of this code location: others share its databases, and may live on other machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from loader.json_text import parse_json_object

_LABEL = ".dagster/repository"  # by which Dagster's pages filter; kept beside the run's tags
_SERVER = ".dagster/grpc_info"  # of the default launcher: the code server that it asked


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """label: "<repository>@<location>"; host, port: of its code server, "" and None for one that Dagster starts."""

    label: str
    host: str = ""
    port: int | None = None


def code_location_of(context: dg.SensorEvaluationContext) -> CodeLocation | None:
    """Where a sensor is evaluated; None by hand, without a workspace."""
    origin = context.code_location_origin
    if origin is None or context.repository_name is None:
        return None
    told = getattr(origin, "host", ""), getattr(origin, "port", None)
    return CodeLocation(f"{context.repository_name}@{origin.location_name}", *told)


def label_of(run: dg.DagsterRun) -> str:
    """Of the code location that a run is of, "" for one that was started without."""
    return run.remote_job_origin.repository_origin.get_label() if run.remote_job_origin else ""


def tags_of(label: str) -> Mapping[str, str]:
    """Return what a filter of runs takes, so that those of other code locations are not among them; all for ""."""
    return {_LABEL: label} if label else {}


def is_server_here(run: dg.DagsterRun, here: CodeLocation) -> bool:
    """Whether the code server that started the run is, or was, of this machine, so that its process would be."""
    try:
        told = parse_json_object(run.tags.get(_SERVER, ""))
        if told.get("port") is not None:
            return (told.get("host"), told["port"]) == (here.host, here.port)
        return here.port is None and Path(told["socket"]).exists()
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


__all__ = ["CodeLocation", "code_location_of", "is_server_here", "label_of", "tags_of"]
