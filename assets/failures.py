"""What a failed step says."""

import dagster as dg


def why_failed(event: dg.DagsterEvent) -> str:
    """Return what a `dg.Failure` says, or else the error that everything else was caused by. event: a step's failure."""
    failure = event.step_failure_data
    if failure.user_failure_data and failure.user_failure_data.description:
        return failure.user_failure_data.description
    error = failure.error
    while error and error.cause:
        error = error.cause
    return error.message.strip() if error else "no message"
