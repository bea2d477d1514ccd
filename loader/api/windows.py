"""Windows of episodes as a plan's source."""

from collections.abc import Mapping, Sequence

from ..dataset.progress import Watch, unwatched
from ..dataset.versions.version import Version
from ..dataset.versions.view import View
from ..errors import InvalidPlan
from ..modalities.array import clock_field
from ..order.sources.window_layout import Places, Time, layout_of
from ..order.sources.window_view import WindowView
from ..run.recipe.window_checks import check_steps


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
            `loader.rows(0, 50)`. Arrays give [k, ...] values, videos uint8 [k, H, W, 3] frames.
        every: Rows from one window to the next.
        keep: Array field with a bool for each row of the anchor, such as "keep.npy" of `episode_sync`. Windows stand
            at those rows of `every` where it is true. Creating the table reads the field once.
        rule: Field -> "last" (what is known at that time, by default), "nearest", or "linear" (of float arrays).
        pad: Outside of the episode "mask" repeats its first or last value, and marks it in `<field>.is_pad`. "inside"
            has only windows whose rows of the anchor fit.
        max_age: Age above which a value counts as padding too.
        text: Styles of language, such as ("subtask", "task"). The batch field `text` has the text of the first style
            that is active at the anchor's time in `language.jsonl`, or "".
        columns: Columns of the samples table that a batch has as fields, such as ("robot",).
        watch: Reports progress while `keep` is read.

    A field's clock is `<field>.ns.npy` (int64 nanoseconds, ascending), or a shorter name's (`a.ns.npy` for `a.b.npy`);
    its fact `clock` names another. A video without one has its container's times. Without a clock of the
    anchor, row k of each field is one step, and values have no ages.

    A batch also has `<field>.age_ns` (int64 [B, k], the anchor's time plus the offset, less the value's own time),
    `<field>.is_pad` (bool [B, k]), `anchor_ns` and `row` (int64 [B]). Keys are `<episode>@<row>`. The root stores 8
    bytes per episode, once.

    Raises: InvalidPlan; FieldNotFound; Corrupt.
    """
    view = episodes.select() if isinstance(episodes, Version) else episodes
    if not isinstance(view, View):
        raise InvalidPlan(f"windows({type(view).__name__}): a version or a view of one is needed")
    layout = layout_of(anchor, at, every, rule, pad, max_age, text, keep=keep, columns=columns)
    if clock_field(anchor, view.version.fields, view.version.facts) is None:
        check_steps(layout)
    return view.windowed(layout, watch)
