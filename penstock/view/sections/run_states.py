"""State of a training as a text."""

from collections.abc import Mapping

from .texts import Text, Tone, quiet, tag

_STATES: Mapping[str, Tone] = {
    "running": "good",
    "stalled": "bad",
    "failed": "bad",
    "damaged": "bad",
    "stopped": "odd",
}


def state_text(state: str, news: str) -> Text:
    """Return a run's state for a line or a cell. news: as in `RunOverview`."""
    if state == "silent":  # whether it ended is unknown
        return quiet(news)
    shown = tag(state, _STATES.get(state, ""))
    if not news:
        return shown
    return shown, quiet(news)
