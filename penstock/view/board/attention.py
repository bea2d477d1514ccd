"""Conditions of trainings and datasets that need a person, the worst first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...metrics.conditions import (
    DatasetFacts,
    RaisedCondition,
    TrainingFacts,
    dataset_conditions,
    node_condition,
    training_conditions,
)
from ...text import clean
from ..json_record import JsonRecord
from .dataset_cards import DatasetCard, HaltedBatch
from .training_lines import TrainingLine
from .unpublished import UnpublishedDataset

_ORDER = {"error": 0, "warning": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItem(JsonRecord):
    name: str
    """Condition, a heading of the on-call page."""
    severity: str
    """error or warning."""
    subject: str
    """Run or dataset."""
    text: str
    """One sentence."""
    page: str
    """Path of the page about it below the first page, as (part, part, ...) joined by "/"; "" for the first page."""
    runbook: str
    """Address of the remedy on the on-call page."""


def attention_items(
    trainings: Sequence[TrainingLine],
    datasets: Sequence[DatasetCard],
    now_s: float,
    unpublished: Sequence[UnpublishedDataset] = (),
    suspects: Mapping[str, Sequence[str]] | None = None,
) -> tuple[AttentionItem, ...]:
    """Return the items, errors first. suspects: node -> figures of the signs against it."""
    items = list[AttentionItem]()
    for line in trainings:
        items.extend(_training_items(line, now_s))
    for card in datasets:
        page = f"v/{card.dataset}/{card.number}"
        items.extend(_dataset_items(card.dataset, card.stopped, page, now_s, card.error))
    for dataset in unpublished:
        # No page but the first one has the dataset.
        items.extend(_dataset_items(dataset.dataset, dataset.stopped, "", now_s))

    for node, signs in (suspects or {}).items():
        # No page has a node.
        raised = node_condition(node, signs)
        items.append(_item(raised, raised.text, ""))

    def rank(item: AttentionItem) -> tuple[int, str, str]:
        return _ORDER[item.severity], item.name, item.subject

    return tuple(sorted(items, key=rank))


def _training_items(line: TrainingLine, now_s: float) -> Iterator[AttentionItem]:
    page = f"r/{line.run}"
    facts = TrainingFacts(
        run=line.run,
        state=line.state,
        # A run without a step yet is silent since its last start.
        last_us=line.last_us or max(line.starts_us, default=0),
        median_step_s=line.median_step_us / 1e6,
        metric=line.metric,
        n_not_finite=line.n_not_finite,
        first_not_finite=line.first_not_finite,
        is_whole=line.is_whole,
        waits=line.waits,
        starts_us=line.starts_us,
        checkpoint_us=line.checkpoint_us,
        substituted=line.substituted,
        failure=line.failure,
        error=line.error,
    )
    for raised in training_conditions(facts, now_s):
        about = page
        if raised.item:
            about = f"{page}/{raised.item}"
        yield _item(raised, raised.text, about)


def _dataset_items(
    dataset: str,
    stopped: Sequence[HaltedBatch],
    page: str,
    now_s: float,
    error: str = "",
) -> Iterator[AttentionItem]:
    batches = [(batch.batch, batch.reason) for batch in stopped]
    facts = DatasetFacts(dataset=dataset, stopped=batches, error=error)
    for raised in dataset_conditions(facts, now_s):
        text = raised.text
        if raised.condition.name == "batch-stopped":
            # A line of the page has no room for the sentence and the reason.
            text = f"batch {raised.item}: {raised.details or 'its gate stopped it'}"
        yield _item(raised, text, page)


def _item(raised: RaisedCondition, text: str, page: str) -> AttentionItem:
    return AttentionItem(
        name=raised.condition.name,
        severity=raised.condition.severity,
        subject=raised.subject,
        text=clean(text, 300),
        page=page,
        runbook=raised.condition.runbook,
    )
