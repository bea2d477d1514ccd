"""A training run's page, and the page of a plan that no training has recorded."""

import math
from collections.abc import Sequence

from loader.run.trail.trail_outline import main_metric

from ...text import clean
from ...units import minute, share
from ..inspect.run_overview import RunOverview, StartLine
from ..inspect.run_record import StartRow, TrainingRunRecord
from ..marks import count_text
from ..page_address import address, version_address
from ..rollouts.decisions import DecisionChart
from .characters.curve_lines import select_metrics
from .decisions import decision_chart_sections
from .laid_over import MOST_OVER, chart_addresses, legend, over_ask
from .relations import card
from .run_states import state_text
from .section import (
    AskField,
    AskSection,
    BoxSection,
    CurvesSection,
    LinesSection,
    LinksSection,
    NoticeSection,
    Section,
    SectionPage,
    TableSection,
    Tile,
    TilesSection,
)
from .texts import (
    ShareBar,
    Text,
    TextPiece,
    Tone,
    code,
    link,
    pieces,
    quiet,
    tag,
)
from .unusual import largest_box, unusual_box

_OWN = {"step", "wait_ms", "substituted"}
"""Columns of a chart that are not metrics of the training."""
MOST_WAITING = 0.1
"""Share of waits above which the tile is red."""
MOST_START_ROWS = 12
MOST_DECISIONS = 5
"""Decisions listed on the page; the others have a page."""
_CURVES = (
    "Every step faint, a running median on top; at the foot red: not finite, amber: far off, grey: no value. "
    "A click opens a step, a drag zooms."
)


def run_sections(
    record: TrainingRunRecord,
    overview: RunOverview,
    decisions: DecisionChart | None = None,
    over: Sequence[str] = (),
) -> SectionPage:
    """Return a run's page. decisions: None for a run that is not online. over: runs laid over its curves."""
    steps = address("r", record.run) + "/"
    metric, now = _newest_metric(record)
    sections: list[Section] = []
    scripts: list[str] = []
    if record.chart["step"]:
        sections += legend(record.run, over)
        sections.append(_curves(record, overview, metric, steps, over))
        scripts.append("run.js")
    if decisions is not None:
        sections += _decisions(record.run, decisions)
    actions = [_open_step(record.run)]
    if len(over) < MOST_OVER:
        actions.append(over_ask(record.run, over))
    side = (
        *unusual_box(record),
        *largest_box(record),
        *_substitution_sections(record),
        _starts(record, overview),
        *_parts(overview),
        *_checkpoints(overview),
        _further(steps),
    )
    return SectionPage(
        title=record.run,
        facts=_facts(record, overview),
        actions=tuple(actions),
        caption=(
            f"{record.run}: {count_text(record.n_steps, 'step')} recorded, "
            f"{record.first_step} to {record.last_step}"
        ),
        location=(link(clean(record.run, 60), address("r", record.run), "strong"),),
        notices=_notices(record, overview),
        top=(_tiles(record, overview, metric, now),),
        sections=tuple(sections),
        side=side,
        run=record.run,
        command=("trail", "verify", record.run),
        layout="run",
        styles=("run.css",),
        scripts=tuple(scripts),
    )


def _curves(
    record: TrainingRunRecord,
    overview: RunOverview,
    metric: str,
    steps: str,
    over: Sequence[str],
) -> Section:
    restarts = [start.first_step for start in overview.starts if start.number > 1]
    has_events = bool(record.substituted or overview.checkpoints or restarts)
    return CurvesSection(
        note=_CURVES,
        chart=record.chart,
        struck=record.struck,
        panels=tuple(select_metrics(record.chart, metric)),
        main=metric,
        restarts=tuple(restarts),
        checkpoints=overview.checkpoints,
        has_events=has_events,
        steps=steps,
        over=chart_addresses(over),
    )


def _newest_metric(record: TrainingRunRecord) -> tuple[str, float | None]:
    """Return (`loss` or the first metric by name, its last value)."""
    metric = main_metric(record.chart.keys() - _OWN)
    now = None
    for value in record.chart.get(metric, ()):
        if value is not None:
            now = value
    return metric, now


def _facts(record: TrainingRunRecord, overview: RunOverview) -> tuple[Text, ...]:
    facts: list[Text] = []
    if record.starts:
        last = record.starts[-1]
        facts += [link(version, version_address(version)) for version in last.versions[:4]]
        facts.append(count_text(last.world_size, "rank"))
        if last.plan:
            facts.append(link(clean(last.plan, 16), address("r", last.plan), "code"))
        if last.recipe:
            facts.append(code(clean(last.recipe, 60)))
    if overview.state:
        facts += pieces(state_text(overview.state, overview.news))
    if overview.newest:
        facts.append(tag(clean(overview.newest, 60)))
    return tuple(facts)


def _notices(record: TrainingRunRecord, overview: RunOverview) -> tuple[Section, ...]:
    # The store's words may be long, and untrusted.
    texts = (record.stale, overview.failure, overview.problem)
    notices: list[Section] = [NoticeSection(clean(text, 600), "bad") for text in texts if text]
    if record.differing:
        n = count_text(len(record.differing), "step")
        links = _step_links(record.run, record.differing)
        notices.append(LinksSection(links, f"{n} received twice with different samples:", "bad"))
    if record.differing_notes:
        n = count_text(len(record.differing_notes), "step")
        links = _step_links(record.run, record.differing_notes)
        notices.append(LinksSection(links, f"{n} repeated with other metrics:"))
    return tuple(notices)


def _step_links(run: str, steps: tuple[int, ...]) -> tuple[TextPiece, ...]:
    return tuple(link(str(step), address("r", run, step)) for step in steps)


def _tiles(
    record: TrainingRunRecord,
    overview: RunOverview,
    metric: str,
    now: float | None,
) -> Section:
    recorded = f"{count_text(record.n_steps, 'step')} recorded, from {record.first_step:,}"
    value = "none"
    if now is not None:
        value = f"{now:.4g}"
    waiting_tone: Tone = ""
    if overview.waiting > MOST_WAITING:
        waiting_tone = "bad"
    newest = "none"
    checkpoints = "saved here"
    if overview.checkpoints:
        newest = f"{overview.checkpoints[0]:,}"
        checkpoints = f"{overview.n_checkpoints:,} of this run"
    starts = "no record of this run"
    if overview.is_recorded:
        starts = count_text(overview.n_starts, "start")
    tiles = (
        Tile("step", f"{record.last_step:,}", recorded),
        Tile(metric or "metric", value, "at the last step"),
        Tile("training waits", _share(overview.waiting), "of its time, for data", waiting_tone),
        Tile("substituted", f"{len(record.substituted):,}", "steps with a substitute"),
        Tile("goodput", _share(overview.goodput), starts),
        Tile("newest checkpoint", newest, checkpoints),
    )
    return TilesSection(tiles)


def _share(value: float) -> str:
    if math.isnan(value):
        return "unknown"
    return share(value, 1)


def _open_step(run: str) -> AskSection:
    return AskSection(
        fields=(AskField(name="step", label="step", is_number=True, size=7),),
        button="Open",
        hint="g opens a step",
        page="find",
        anchor="open-step",
        hidden=(("run", run),),
    )


def _decisions(run: str, decisions: DecisionChart) -> list[Section]:
    title: list[str | TextPiece] = [
        link("Decisions", address("r", run, "decisions")),
        quiet(f"{decisions.n_decisions:,}"),
    ]
    if decisions.like:
        title.append(quiet(f"before step {decisions.until:,} the decisions of {decisions.like}"))
    sections: list[Section] = []
    if decisions.error:
        sections.append(NoticeSection(decisions.error, "bad"))
    sections += decision_chart_sections(run, decisions, MOST_DECISIONS)
    return [BoxSection(title=tuple(title), sections=tuple(sections))]


def _substitution_sections(record: TrainingRunRecord) -> list[Section]:
    if not record.substituted:
        return []
    links = LinksSection(_step_links(record.run, record.substituted), most=12)
    return [card("Steps with substituted samples", links)]


def _starts(record: TrainingRunRecord, overview: RunOverview) -> Section:
    rows = [_attempt_row(attempt) for attempt in overview.starts]
    # The record of the training has its attempts, the run log the starts of their loaders.
    n_earlier = overview.n_starts - len(overview.starts)
    if n_earlier > 0:
        rows.append(("", quiet(f"and {n_earlier:,} earlier")))
    n_logged = len(record.starts) - MOST_START_ROWS
    if n_logged > 0:
        rows.append(("", quiet(f"and {n_logged:,} earlier in the run log")))
    rows += [_start_row(start) for start in record.starts[-MOST_START_ROWS:]]
    return card("Starts", TableSection(rows=tuple(rows)))


def _attempt_row(attempt: StartLine) -> tuple[Text, ...]:
    facts = [f"to {attempt.end_step:,}"]
    if attempt.nodes > 1:
        facts.append(f"{attempt.nodes} nodes")
    if attempt.end:
        facts.append(clean(attempt.end, 60).replace("_", " "))
    name = f"{attempt.number}: step {attempt.first_step:,}"
    text = ", ".join(facts)
    if not attempt.lost_steps:
        return name, text
    return name, (text, quiet(f"{count_text(attempt.lost_steps, 'step')} made again"))


def _start_row(start: StartRow) -> tuple[Text, ...]:
    words: list[str | TextPiece] = [f"{count_text(start.world_size, 'rank')},"]
    if start.plan:
        words += ["plan", link(clean(start.plan, 10), address("r", start.plan), "code")]
    else:
        words.append("decided by step")
    if start.code:
        words.append(quiet(f"code {clean(start.code, 60)}"))
    if start.error:
        words.append(TextPiece(clean(start.error, 200), tone="bad"))
    return minute(start.at_us), tuple(words)


def _parts(overview: RunOverview) -> list[Section]:
    rows = []
    for part, part_share in overview.parts.items():
        bar = ShareBar(part_share, share(part_share, 1), is_main=part == "new steps")
        rows.append((part, bar))
    if not rows:
        return []
    sections: list[Section] = [TableSection(rows=tuple(rows))]
    causes = [f"{clean(cause, 30)} {n}" for cause, n in overview.restart_causes.items()]
    if causes:
        sections.append(NoticeSection(f"starts after: {', '.join(causes)}", "quiet"))
    return [card("Where its time went", *sections)]


def _checkpoints(overview: RunOverview) -> list[Section]:
    if not overview.checkpoints:
        return []
    text = ", ".join(f"{step:,}" for step in overview.checkpoints)
    n_earlier = overview.n_checkpoints - len(overview.checkpoints)
    if n_earlier:
        text += f" and {n_earlier:,} earlier"
    return [card("Checkpoints", NoticeSection(text))]


def _further(steps: str) -> Section:
    step_range = step_range_ask(f"{steps}window")
    comparison = _comparison_ask(f"{steps}against")
    return card(
        "Look further",
        step_range,
        comparison,
    )


def step_range_ask(page: str, first: str = "", last: str = "") -> AskSection:
    """Return the inputs of a range of steps. first, last: steps that the inputs begin with."""
    return AskSection(
        fields=(
            AskField(name="from", label="steps", is_number=True, value=first),
            AskField(name="to", label="to", is_number=True, value=last),
        ),
        button="Open steps",
        hint="w opens several steps at once",
        page=page,
    )


def _comparison_ask(page: str) -> AskSection:
    return AskSection(
        fields=(AskField(name="run", label="run", is_required=True, size=14),),
        button="Compare",
        hint="a compares with another run",
        page=page,
    )


def plan_sections(name: str, lines: list[str]) -> SectionPage:
    """Return the page of a plan without a run log. lines: its description."""
    page = address("r", name)
    open_step = AskSection(
        fields=(AskField(name="step", label="Step", is_number=True, value="0", size=8),),
        button="Open",
        hint="g opens a step",
        page="find",
        anchor="open-step",
        hidden=(("run", name),),
    )
    return SectionPage(
        title=f"Plan {clean(name, 20)}",
        caption=f"plan {clean(name, 20)}",
        location=(link(clean(name, 16), page),),
        sections=(
            NoticeSection(
                "A plan has no record of a training. Its steps appear as planned, with the samples as stored now."
            ),
            open_step,
            step_range_ask(f"{page}/window"),
            LinesSection(tuple(lines)),
        ),
        run=name,
        command=("batch", f"{name}@0"),
    )
