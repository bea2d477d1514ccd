"""Choose one clock for the topics of a robot log.

A topic has two clocks: the log time, when the recorder received a message, and the message's own stamp. Stamps are
better, because a message is on its way for some time. But a simulator, a camera that counts from its start, or a
computer without a time server stamps by another clock.

Topics whose stamps stay within `MAX_LAG_NS` of the log time are on its clock. If no topic is, as in a simulation, all
must be on one other clock: at equal log times, equally far from the log time. Any other log is refused. To compare
only first stamps would be cheaper, but would miss a clock that is set during the recording.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from loader.errors import Corrupt, InvalidSample

from ..importer import CLOCKS, EVERY_TOPIC

LOG_TIME, STAMP = CLOCKS
MAX_LAG_NS = 5 * 10**9
"""Largest difference between the stamps and log times of one clock. A slow detector or a full network takes seconds."""
_MOST_NAMES = 8
"""Most topics that an error names."""


class TopicTimes(NamedTuple):
    full_name: str
    """Name in the log."""
    name: str
    """Name with dots for slashes."""
    log_times: Any
    """int64 [messages], Unix nanoseconds, in the order of the log."""
    stamp_name: str
    """Value that holds the stamps, such as `header.stamp`; "" if a message has none."""
    stamps: Any
    """int64 [messages], nanoseconds; empty without stamps."""

    @property
    def is_stamped(self) -> bool:
        """True if every message has a stamp, and stamps ascend strictly."""
        if not self.stamp_name:
            return False
        # In ROS a stamp of 0 means "not set", but a simulation may begin at 0.
        if len(self.stamps) == 1 and self.stamps[0] == 0:
            return False
        return bool((self.stamps[1:] > self.stamps[:-1]).all())

    @property
    def lag_ns(self) -> Any:
        """Log time minus stamp: float64 [messages], because int64 could overflow."""
        return self.log_times.astype(np.float64) - self.stamps.astype(np.float64)

    def chosen_clock(self, choices: Mapping[str, str]) -> str:
        """Return the caller's choice; "" without one."""
        for key in (self.full_name, self.name, EVERY_TOPIC):
            if key in choices:
                return choices[key]
        return ""


class _Stray(NamedTuple):
    """A topic on another clock than the rest of its log."""

    times: TopicTimes
    row: int
    """First message with another clock."""
    off_ns: float
    """Its stamp minus the time that the rest of the log has there."""


def clocks_of(
    where: str, topics: Sequence[TopicTimes], choices: Mapping[str, str]
) -> dict[str, tuple[str, Any]]:
    """Return each topic's clock by name: the clock's name, and int64 [messages] in nanoseconds.

    where: name of the log, for errors. choices: topic -> clock of `CLOCKS`; the stamps of a topic with the choice
    "stamp" may be on any clock.

    Raises: InvalidSample if topics are on different clocks, or have no stamps where stamps were chosen; Corrupt if
    neither clock of a topic ascends.
    """
    clocks = dict[str, tuple[str, Any]]()
    stamped = list[TopicTimes]()
    by_log_time = list[TopicTimes]()
    for topic in topics:
        choice = topic.chosen_clock(choices)
        if choice == STAMP and not topic.is_stamped:
            name = topic.full_name
            raise InvalidSample(
                f"{where}, topic {name}: its stamps were chosen as its clock, but its messages have no stamp that "
                f"ascends strictly; choose its log time (--clock {name}={LOG_TIME}), or leave the topic out "
                f"(--without {name})"
            )
        if choice == LOG_TIME or not topic.is_stamped:
            _check_log_times(where, topic)
            clocks[topic.name] = LOG_TIME, topic.log_times
            by_log_time.append(topic)
            continue
        clocks[topic.name] = topic.stamp_name, topic.stamps
        if choice != STAMP:
            stamped.append(topic)
    _check_one_clock(where, stamped, by_log_time)
    return clocks


def _check_log_times(where: str, topic: TopicTimes) -> None:
    times = topic.log_times
    back = np.flatnonzero(times[1:] <= times[:-1])
    if not len(back):
        return
    row = int(back[0]) + 1
    other = "its log time was chosen as its clock"
    if not topic.is_stamped:
        other = "the messages have no stamp that ascends strictly"
    raise Corrupt(
        f"{where}, topic {topic.full_name}, row {row}: its {LOG_TIME} {times[row]} is not behind {times[row - 1]}, and "
        f"{other}; leave the topic out (--without {topic.full_name})"
    )


def _check_one_clock(where: str, stamped: Sequence[TopicTimes], by_log_time: Sequence[TopicTimes]) -> None:
    far = list[_Stray]()
    near = [*by_log_time]
    for topic in stamped:
        lag = topic.lag_ns
        rows = np.flatnonzero(np.abs(lag) > MAX_LAG_NS)
        if len(rows):
            row = int(rows[0])
            far.append(_Stray(topic, row, -float(lag[row])))
        else:
            near.append(topic)
    if far and near:
        raise _different_clocks(where, far, f"log_time, which {near[0].full_name} follows")
    if far:
        _check_own_clock(where, [stray.times for stray in far])


def _check_own_clock(where: str, stamped: Sequence[TopicTimes]) -> None:
    """Raise InvalidSample unless topics whose stamps are far from the log time share one clock."""
    reference = max(stamped, key=lambda topic: len(topic.stamps))
    order = np.argsort(reference.log_times, kind="stable")
    log_times = reference.log_times[order].astype(np.float64)
    lag = reference.lag_ns[order]
    # A simulation may pause while the log time goes on. Stamps that leap ahead of the log time were set.
    leaps = np.flatnonzero(lag[1:] < lag[:-1] - MAX_LAG_NS)
    if len(leaps):
        before = int(leaps[0])
        leap = _Stray(reference, int(order[before + 1]), float(lag[before] - lag[before + 1]))
        raise _different_clocks(where, [leap], "the stamp before it plus the log time since")
    strays = list[_Stray]()
    for topic in stamped:
        if topic is reference:
            continue
        own_lag = topic.lag_ns
        off = np.interp(topic.log_times, log_times, lag) - own_lag  # [messages]
        rows = np.flatnonzero(np.abs(off) > MAX_LAG_NS + _uncertainty_ns(topic.log_times, log_times, lag))
        if len(rows):
            row = int(rows[0])
            strays.append(_Stray(topic, row, float(off[row])))
    if strays:
        raise _different_clocks(where, strays, f"the {reference.stamp_name} of {reference.full_name}")


def _uncertainty_ns(at: Any, log_times: Any, lag: Any) -> Any:
    """Return how far a lag may lie from the one interpolated at each time: float64, the shape of `at`.

    at: log times. log_times, lag: float64 [n] of the reference, by ascending log time. A simulation may be slower or
    faster than the log time, and may pause between two messages or beyond the reference's ends.
    """
    if len(log_times) == 1:
        return np.abs(at - log_times[0])
    right = np.searchsorted(log_times, at).clip(1, len(log_times) - 1)
    between = log_times[right] - log_times[right - 1] + np.abs(lag[right] - lag[right - 1])
    beyond = np.maximum(log_times[0] - at, at - log_times[-1])  # above 0 only outside of the reference
    duration = max(log_times[-1] - log_times[0], 1.0)
    drift = 1 + abs(lag[-1] - lag[0]) / duration
    return np.where(beyond > 0, beyond * drift, between)


def _different_clocks(where: str, strays: Sequence[_Stray], reference: str) -> InvalidSample:
    first = strays[0].times.full_name
    listed = [
        f"topic {stray.times.full_name}, row {stray.row}: its {stray.times.stamp_name} is off by "
        f"{stray.off_ns / 1e9:+,.3f} s"
        for stray in strays[:_MOST_NAMES]
    ]
    if len(strays) > _MOST_NAMES:
        listed.append(f"and {len(strays) - _MOST_NAMES} other topics")
    return InvalidSample(
        f"{where}, {'; '.join(listed)} from {reference}; at most {MAX_LAG_NS // 10**9} s are accepted, because topics "
        f"of different clocks cannot be aligned. Use the log time of the topic (--clock {first}={LOG_TIME}) or of all "
        f"topics (--clock {LOG_TIME}); --clock {first}={STAMP} accepts its stamps without this check"
    )
