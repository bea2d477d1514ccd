"""Error message of a failed step."""

import dagster as dg


def why_failed(event: dg.DagsterEvent) -> str:
    """Return the message of a step's `dg.Failure`, or of the first cause of its error."""
    failure = event.step_failure_data
    if failure.user_failure_data and failure.user_failure_data.description:
        return failure.user_failure_data.description
    error = failure.error
    while error and error.cause:
        error = error.cause
    return error.message.strip() if error else "no message"
