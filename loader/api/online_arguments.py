"""The arguments of `loader.online` that decide: checked, and as they are stored."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import InvalidRuntime
from ..json_text import parse_json_object
from ..keywords import check_word, whole_number
from ..order.sources.packing import PackBy
from ..rollouts.decide import DecisionRule

LIKE_ARGUMENTS = ("seed", "groups", "pack", "updates", "multiple", "source")
"""Arguments that a run shares with the run that it repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineArguments:
    """The arguments of `loader.online` that decide, checked."""

    ref: str
    seed: int
    pack: PackBy
    rule: DecisionRule
    updates: int
    multiple: int
    source: str

    def to_json(self) -> dict[str, Any]:
        body = {
            "ref": self.ref,
            "seed": self.seed,
            "pack": asdict(self.pack),
            "updates": self.updates,
            "multiple": self.multiple,
            "source": self.source,
            **asdict(self.rule),
        }
        plain: dict[str, Any] = parse_json_object(
            json.dumps(body)
        )  # tuples become lists, as in a stored record
        return plain


def check_arguments(
    *,
    ref: str,
    seed: int,
    pack: object,
    groups: object,
    max_lag: object,
    stale: Any,
    min_size: object,
    updates: object,
    multiple: object,
    source: str,
) -> OnlineArguments:
    """Return the arguments. Raises: InvalidRuntime."""
    if not isinstance(pack, PackBy):
        raise InvalidRuntime(f"pack = {pack!r}: loader.pack('tokens.npy', length=8192, ...) is needed")
    check_word("stale", stale, ("sequence", "group"))
    rule = DecisionRule(
        groups=whole_number("groups", groups, 1),
        max_lag=whole_number("max_lag", max_lag, 0),
        stale=stale,
        min_size=whole_number("min_size", min_size, 1),
    )
    return OnlineArguments(
        ref=ref,
        seed=seed,
        pack=pack,
        rule=rule,
        updates=whole_number("updates", updates, 1),
        multiple=whole_number("multiple", multiple, 1),
        source=source,
    )
