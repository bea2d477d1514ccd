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
_USUAL_STEPS = 3
"""Median steps of a topic's stamps that are not leap."""
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
        stamps = self.stamps
        if not self.stamp_name:
            return False
        # In ROS a stamp of 0 means "not set", but a simulation may begin at 0.
        if len(stamps) == 1 and stamps[0] == 0:
            return False
        steps_forward = stamps[1:] > stamps[:-1]
        return bool(steps_forward.all())

    @property
    def lag_ns(self) -> Any:
        """Log time minus stamp: float64 [messages], because int64 could overflow."""
        log_times = self.log_times.astype(np.float64)
        stamps = self.stamps.astype(np.float64)
        return log_times - stamps

    def clock_choice(self, choices: Mapping[str, str]) -> str:
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


def topic_clocks(
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
        choice = topic.clock_choice(choices)
        if choice == STAMP:
            _check_stamps(where, topic)
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


def _check_stamps(where: str, topic: TopicTimes) -> None:
    if topic.is_stamped:
        return
    name = topic.full_name
    raise InvalidSample(
        f"{where}, topic {name}: its stamps were chosen as its clock, but its messages have no stamp that "
        f"ascends strictly; choose its log time (--clock {name}={LOG_TIME}), or leave the topic out "
        f"(--without {name})"
    )


def _check_log_times(where: str, topic: TopicTimes) -> None:
    times = topic.log_times
    steps_back = times[1:] <= times[:-1]
    if not steps_back.any():
        return
    before = int(steps_back.argmax())
    row = before + 1
    other = "its log time was chosen as its clock"
    if not topic.is_stamped:
        other = "the messages have no stamp that ascends strictly"
    name = topic.full_name
    raise Corrupt(
        f"{where}, topic {name}, row {row}: its {LOG_TIME} {times[row]} is not after {times[before]}, and "
        f"{other}; leave the topic out (--without {name})"
    )


def _check_one_clock(where: str, stamped: Sequence[TopicTimes], by_log_time: Sequence[TopicTimes]) -> None:
    far = list[_Stray]()
    near = [*by_log_time]
    for topic in stamped:
        lag = topic.lag_ns
        is_far = np.abs(lag) > MAX_LAG_NS  # [messages]
        if not is_far.any():
            near.append(topic)
            continue
        row = int(is_far.argmax())
        far.append(_Stray(topic, row, -float(lag[row])))
    if not far:
        return
    if near:
        raise _different_clocks(where, far, f"{LOG_TIME}, which {near[0].full_name} follows")
    _check_own_clock(where, [stray.times for stray in far])


def _check_own_clock(where: str, stamped: Sequence[TopicTimes]) -> None:
    """Raise InvalidSample unless topics whose stamps are far from the log time share one clock."""
    longest = max(stamped, key=_n_messages)
    reference = _Reference.of(longest)
    leap = reference.leap()
    if leap is not None:
        raise _different_clocks(where, [leap], "the stamp before it plus the log time since")
    strays = list[_Stray]()
    for topic in stamped:
        if topic is longest:
            continue
        expected_lag = reference.lag_at(topic.log_times)
        off = expected_lag - topic.lag_ns  # [messages]: stamp minus the reference's stamp
        accepted = MAX_LAG_NS + reference.uncertainty_ns(topic.log_times)
        is_stray = np.abs(off) > accepted
        if is_stray.any():
            row = int(is_stray.argmax())
            strays.append(_Stray(topic, row, float(off[row])))
    if strays:
        raise _different_clocks(where, strays, f"the {longest.stamp_name} of {longest.full_name}")


def _n_messages(topic: TopicTimes) -> int:
    return len(topic.stamps)


class _Reference(NamedTuple):
    """The topic with the most messages, with which the others are compared."""

    times: TopicTimes
    order: Any
    """int64 [messages]: rows by ascending log time."""
    log_times: Any
    """float64 [messages], ascending."""
    lag: Any
    """Log time minus stamp: float64 [messages], in the order of `log_times`."""

    @classmethod
    def of(cls, topic: TopicTimes) -> "_Reference":
        order = np.argsort(topic.log_times, kind="stable")
        log_times = topic.log_times[order].astype(np.float64)
        lag = topic.lag_ns[order]
        return cls(topic, order, log_times, lag)

    def leap(self) -> _Stray | None:
        """Return the first message whose stamp leaps ahead of the log time; None without one.

        A simulation may pause while the log time goes on. Stamps that leap ahead were set.
        """
        if len(self.lag) == 1:
            return None
        gain = self.lag[:-1] - self.lag[1:]  # [messages - 1]: progress of the stamps beyond the log time's
        steps = np.diff(self.times.stamps)
        # A fast simulation gains with each of its steps, which are long for a topic of few messages.
        usual_gain = _USUAL_STEPS * float(np.median(steps))
        is_leap = gain > MAX_LAG_NS + usual_gain
        if not is_leap.any():
            return None
        before = int(is_leap.argmax())
        row = int(self.order[before + 1])
        return _Stray(self.times, row, float(gain[before]))

    def lag_at(self, log_times: Any) -> Any:
        """Return the lag at these log times: float64 of the same shape, interpolated."""
        return np.interp(log_times, self.log_times, self.lag)

    def uncertainty_ns(self, log_times: Any) -> Any:
        """Return how far `lag_at` may be wrong: float64 of the same shape.

        A simulation may be slower or faster than the log time. It may pause between two messages, and beyond the first
        and the last one.
        """
        first, last = self.log_times[[0, -1]]
        if len(self.log_times) == 1:
            return np.abs(log_times - first)
        after = np.searchsorted(self.log_times, log_times)
        after = after.clip(1, len(self.log_times) - 1)
        before = after - 1
        pause = self.log_times[after] - self.log_times[before]
        change = np.abs(self.lag[after] - self.lag[before])
        duration = max(last - first, 1.0)
        drift = abs(self.lag[-1] - self.lag[0]) / duration
        beyond = np.maximum(first - log_times, log_times - last)  # above 0 outside of the reference only
        return np.where(beyond > 0, beyond * (1 + drift), pause + change)


def _different_clocks(where: str, strays: Sequence[_Stray], reference: str) -> InvalidSample:
    listed = list[str]()
    for times, row, off_ns in strays[:_MOST_NAMES]:
        seconds = off_ns / 1e9
        listed.append(
            f"topic {times.full_name}, row {row}: its {times.stamp_name} is off by {seconds:+,.3f} s"
        )
    n_more = len(strays) - _MOST_NAMES
    if n_more > 0:
        listed.append(f"and {n_more} other topics")
    topics = "; ".join(listed)
    name = strays[0].times.full_name
    most_s = MAX_LAG_NS // 10**9
    return InvalidSample(
        f"{where}, {topics} from {reference}; at most {most_s} s are accepted, because topics of different clocks "
        f"cannot be aligned. Use the log time of the topic (--clock {name}={LOG_TIME}) or of all topics "
        f"(--clock {LOG_TIME}); --clock {name}={STAMP} accepts its stamps without this check"
    )
