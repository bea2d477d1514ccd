"""Windows of episodes as a plan's source, and under LeRobot's offsets and names."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from ..dataset.progress import Watch, unwatched
from ..dataset.versions.version import Version, View
from ..errors import InvalidPlan, InvalidRuntime
from ..modalities.array import clock_field, is_array
from ..modalities.video.depth import DepthScale
from ..order.sources.window_layout import (
    ANCHOR_NS,
    DEPTH,
    IS_PAD,
    ROW,
    TEXT,
    Offsets,
    Places,
    Time,
    build_layout,
)
from ..order.sources.window_view import WindowView
from ..run.part_reads.episode_clocks import check_steps

if TYPE_CHECKING:
    from ..run.batch.batch import Batch


def windows(
    episodes: Version | View,
    *,
    anchor: str,
    at: Mapping[str, Places],
    every: int = 1,
    keep: str | None = None,
    rule: Mapping[str, str] | None = None,
    pad: str = "mask",
    max_age: Time | None = None,
    text: Sequence[str] = (),
    columns: Sequence[str] = (),
    watch: Watch = unwatched,
) -> WindowView:
    """Return a view with a window per row of a stream: `loader.plan({"arm": windows(...)}, ...)` orders windows.

    Args:
        episodes: Version or view whose samples are episodes. Its other fields are handed out whole.
        anchor: `.npy` field; a window stands at every `every`-th of its rows, at the time of its clock.
        at: Field -> times from the anchor's time on, such as ["-100ms", 0], or rows from the one in force on, such as
            `loader.rows(0, 50)`. Arrays give [k, ...] values, videos [k, H, W, C] frames as `loader.video` describes.
        every: Rows from one window to the next.
        keep: Array field with a bool for each row of the anchor, such as "keep.npy" of `episode_sync`. Windows stand at
            those rows of `every` where it is true.
        rule: Field -> "last" (what is known at that time, by default), "nearest", or "linear" (of float arrays).
        pad: Outside of the episode "mask" repeats its first or last value, and marks it in `<field>.is_pad`. "inside"
            has only windows whose rows of the anchor fit.
        max_age: Age above which a value counts as padding too; of "nearest", the distance to an earlier or later value.
        text: Styles of language, such as ("subtask", "task"). The batch field `text` has the text of the first style
            that is active at the anchor's time in `language.jsonl`, or "".
        columns: Columns of the samples table that a batch has as fields, such as ("robot",).
        watch: Reports progress while `keep` is read.

    A field's clock is `<field>.ns.npy` (int64 nanoseconds, ascending), or a shorter name's (`a.ns.npy` for `a.b.npy`);
    its fact `clock` names another. A video without one has its container's times. Without a clock of the
    anchor, row k of each field is one step, and values have no ages.

    A batch also has `<field>.age_ns` (int64 [B, k], the anchor's time plus the offset, less the value's own time),
    `<field>.is_pad` (bool [B, k]), `anchor_ns` and `row` (int64 [B]). A depth video with the fact `depth`, the
    meaning of its codes, also has `<field>.depth`: float64 [B, 5] max_code, min_m, max_m, shift_m, is_log
    (docs/format.md). Keys are `<episode>@<row>`. The root stores 8 bytes per episode, once.

    Raises: InvalidPlan; FieldNotFound; Corrupt.
    """
    if isinstance(episodes, Version):
        view = episodes.select()
    else:
        view = episodes
    if not isinstance(view, View):
        raise InvalidPlan(
            f"windows({type(view).__name__}): a version or a view of one is needed",
            what="episodes",
            given=type(view).__name__,
            accepted="a version or a view of one",
        )
    layout = build_layout(anchor, at, every, rule, pad, max_age, text, keep=keep, columns=columns)
    if clock_field(anchor, view.version.fields, view.version.facts) is None:
        # Without a clock only offsets in rows have a meaning.
        check_steps(layout)
    return view.windowed(layout, watch)


NEAREST_S = 1e-6
"""Largest distance of a float from its row, in seconds."""


def delta_timestamps(
    episodes: Version | View,
    deltas: Mapping[str, Iterable[float]],
    *,
    fps: Fraction | int | None = None,
) -> dict[str, Offsets]:
    """Return LeRobot's `delta_timestamps` as the `at` of `loader.windows`, in rows.

    Args:
        episodes: Version or view imported from LeRobot.
        deltas: LeRobot's dictionary: feature, such as "action", -> seconds from the frame on.
        fps: Frames per second; None takes the fact `fps` of each field.

    Raises: InvalidPlan for a feature that the view lacks, or a time that is not a whole row.
    """
    if isinstance(episodes, Version):
        view = episodes.select()
    else:
        view = episodes
    at: dict[str, Offsets] = {}
    for feature, seconds in deltas.items():
        field = _field(view, feature)
        if fps is None:
            rate = view.version.facts.get(field, {}).get("fps")
        else:
            rate = fps
        if rate is None:
            raise InvalidPlan(
                f"delta_timestamps[{feature!r}]: {field!r} has no fact 'fps'; pass fps=",
                what="fps",
                where=f"delta_timestamps[{feature!r}]",
                accepted=f"the fact 'fps' of {field!r}, or fps=",
            )
        rows = tuple(_row(feature, one, rate) for one in seconds)
        if not rows:
            raise InvalidPlan(
                f"delta_timestamps[{feature!r}] has no time",
                what=f"delta_timestamps[{feature!r}]",
                given=[],
                accepted="at least 1 time",
            )
        at[field] = Offsets("rows", rows)
    return at


def _field(view: View, feature: str) -> str:
    """Return the view's field of a LeRobot feature: its name without the ending. Raises: InvalidPlan."""
    fields = [field for field in view.fields if field.rpartition(".")[0] == feature]
    if len(fields) != 1:
        raise InvalidPlan(
            f"delta_timestamps names {feature!r}, of which the view selects {fields or 'nothing'}; its fields: "
            f"{list(view.fields)}",
            what="delta_timestamps",
            given=feature,
            accepted=list(view.fields),
        )
    return fields[0]


def _row(feature: str, seconds: float, fps: Any) -> int:
    """Return the row that lies some seconds from the frame. Raises: InvalidPlan unless it is a whole one."""
    try:
        rate = Fraction(fps)
        # Exact: a product of floats could round to the next row.
        row: int = round(Fraction(seconds) * rate)
        distance = abs(float(row / rate) - float(seconds))
    # `Fraction` of nan, of infinity and of a text without a number, and 0 frames per second.
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InvalidPlan(
            f"delta_timestamps[{feature!r}]: {seconds!r} s at {fps!r} per second: {error}",
            what=f"delta_timestamps[{feature!r}]",
            given=(seconds, fps),
            accepted="seconds, and frames per second",
        ) from None
    if distance > NEAREST_S or rate < 0:
        raise InvalidPlan(
            f"delta_timestamps[{feature!r}] has {seconds!r} s, no whole row of 1/{fps} s; name it in loader.windows",
            what=f"delta_timestamps[{feature!r}]",
            given=seconds,
            accepted=f"whole rows of 1/{fps} s",
        )
    return row


def to_lerobot(
    batch: "Batch", *, stacked: Collection[str] = (), depth_unit: Literal["mm", "m"] = "mm"
) -> dict[str, Any]:
    """Return a batch of windows as LeRobot's policies take it: a dict of torch tensors under LeRobot's names.

    A field `observation.state.npy` becomes `observation.state`, [B, k, ...], and its `is_pad` the field
    `observation.state_is_pad`, bool [B, k]. Frames become float32 [B, k, 3, H, W] from 0 to 1, of 16 bits too. Codes of
    a depth video become distances, float32 [B, k, 1, H, W], as in LeRobot's datasets. Single values (k = 1) lose their
    axis, unless `stacked` names the feature. `frame_index` (int64 [B]) and `timestamp` (float32 [B], s) are the
    anchor's; the text of `loader.windows(text=...)` is `task`.

    Args:
        batch: Batch of `Loader(plan, framework="torch")`.
        stacked: Features that keep an axis of one value, as LeRobot has for `delta_timestamps={"...": [0.0]}`.
        depth_unit: "mm" gives distances in whole mm, as LeRobot by default; "m" in metres.

    Raises: InvalidRuntime for a batch without windows, with values of several shapes in a field, with gray frames of
    more than 8 bits that no fact explains, or with a depth video decoded to 8 bits.
    """
    import torch

    if depth_unit not in ("mm", "m"):
        message = f"to_lerobot(depth_unit={depth_unit!r}): 'mm' or 'm'"
        raise InvalidRuntime(message, what="depth_unit", given=depth_unit, accepted=["mm", "m"])
    if ROW not in batch.fields:
        message = "to_lerobot: the batch has no windows; make its plan of loader.windows(...)"
        raise InvalidRuntime(message, what="batch", given=list(batch.fields), accepted="a batch of windows")
    out: dict[str, Any] = {}
    for field, value in batch.fields.items():
        pad = batch.fields.get(f"{field}.{IS_PAD}")
        if pad is None:
            continue
        feature = field.rpartition(".")[0]
        if not isinstance(value, torch.Tensor):
            message = f"to_lerobot: {field!r} is a {type(value).__name__}; give loader.video one size"
            raise InvalidRuntime(message, what=field, given=type(value).__name__, accepted="one tensor")
        if not is_array(field):
            value = _frames(field, value, batch.fields.get(f"{field}.{DEPTH}"), depth_unit)
        is_single = value.shape[1] == 1 and feature not in stacked
        if is_single:
            value = value[:, 0]
            pad = pad[:, 0]
        out[feature] = value
        out[f"{feature}_{IS_PAD}"] = pad
    out["frame_index"] = batch[ROW]
    if ANCHOR_NS in batch.fields:
        # Divided as float64: float32 would keep only 24 bits of the nanoseconds.
        out["timestamp"] = (batch[ANCHOR_NS].to(torch.float64) / 1e9).to(torch.float32)
    # Fields that windows do not have keep their names, such as the text and columns.
    anchor_fields = {ROW, ANCHOR_NS}
    endings = (f".{IS_PAD}", ".age_ns", f".{DEPTH}")
    for field, value in batch.fields.items():
        is_windowed = f"{field}.{IS_PAD}" in batch.fields
        describes_windowed = field.rpartition(".")[0] in batch.fields and field.endswith(endings)
        if not is_windowed and not describes_windowed and field not in anchor_fields:
            out[field] = value
    if TEXT in out:
        out["task"] = out.pop(TEXT)
    return out


def _frames(field: str, frames: Any, scales: Any, depth_unit: str) -> Any:
    """Return float32 [B, k, C, H, W]: colour from 0 to 1, depth as distances.

    frames: uint8 or uint16 [B, k, H, W, C]. scales: float64 [B, 5], `DepthScale.numbers` of each slot, zeros at
    padding; None for a video that is not depth.
    """
    import torch

    # [B, k, C, H, W].
    channels_first = frames.permute(0, 1, 4, 2, 3)
    is_deep = frames.dtype == torch.uint16
    is_gray = frames.shape[-1] == 1
    if scales is None:
        if is_gray:
            raise InvalidRuntime(
                f"to_lerobot: {field!r} has gray frames of more than 8 bits, and its version has no fact 'depth', the "
                "meaning of their numbers. Import it again under another name, state the fact (docs/format.md), or "
                "decode it with loader.video(bits=8)",
                what=field,
                given=str(frames.dtype),
                accepted="a fact 'depth', or 8 bits",
            )
        # The largest code of the dtype becomes 1.
        largest = 65_535 if is_deep else 255
        return channels_first.to(torch.float32) / largest
    if not is_gray:
        raise InvalidRuntime(
            f"to_lerobot: {field!r} is a depth video, and its frames are {frames.dtype} {list(frames.shape)}; decode "
            "it with loader.video() without bits, and store it as gray video of more than 8 bits",
            what=field,
            given=[str(frames.dtype), *frames.shape],
            accepted="gray frames of more than 8 bits",
        )
    depth = channels_first.to(torch.float32)
    # A batch may mix episodes whose codes have different meanings.
    for numbers in torch.unique(scales, dim=0):
        max_code, min_m, max_m, shift_m, is_log = numbers.tolist()
        if not max_code:
            continue  # padding
        scale = DepthScale(
            max_code=int(max_code), min_m=min_m, max_m=max_m, shift_m=shift_m, is_log=bool(is_log)
        )
        # bool [B].
        slots = (scales == numbers).all(dim=1).to(depth.device)
        depth[slots] = scale.distances(depth[slots], depth_unit)
    return depth
