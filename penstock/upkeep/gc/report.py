"""The result of one collector pass, per dataset: objects, bytes and their price."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ...units import size
from .needed import FOREIGN, LIVE, OPEN, WHY, Tally
from .sweep import SweepResult

PRICES_USD = {
    "s3": 0.023,
    "gs": 0.020,
    "gcs": 0.020,
    "az": 0.018,
    "abfs": 0.018,
    "abfss": 0.018,
    "adl": 0.018,
}
"""US dollars per GiB and month, by URL scheme; other stores cost nothing.

List prices of 2025: S3 Standard us-east-1, GCS Standard us-central1, Azure Blob Hot LRS East US.
"""
_STAYS = {WHY[FOREIGN], WHY[OPEN], WHY[LIVE]}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionReport:
    """The result of one collector pass."""

    url: str
    """Root URL."""
    collector: str
    """The collector's name."""
    applied: bool
    """True if objects were deleted; False for a dry run."""
    grace_s: float
    """Seconds between condemnation and deletion."""
    tally: Tally
    """Counts and sizes of all objects."""
    due: Mapping[str, tuple[int, int]]
    """Dataset -> (objects, bytes) that may be deleted now."""
    owners: Mapping[str, str]
    """Dataset -> owner."""
    silent: Sequence[str]
    """Open transactions of dead writers; aborted if `applied`."""
    swept: SweepResult
    """Result of the sweep."""

    def price_usd(self, price: float | None) -> float:
        """Return the price in US dollars per GiB and month: the given one, or the provider's."""
        return PRICES_USD.get(urlsplit(self.url).scheme, 0.0) if price is None else price

    def rows(self, price: float | None = None) -> list[dict[str, Any]]:
        """Return a row per dataset: owner, objects and bytes by state, condemned objects' price in USD per month.

        The dataset is "" for objects outside any dataset.
        """
        rows = []
        for dataset in sorted({dataset for dataset, _ in self.tally.sums}):
            sums_here = {what: sums for (of, what), sums in self.tally.sums.items() if of == dataset}
            condemned = [sums for what, sums in sums_here.items() if what not in _STAYS]
            nbytes = sum(n for _, n in condemned)
            if not condemned and not {WHY[LIVE], WHY[OPEN]} & sums_here.keys():
                continue  # foreign objects only
            parts = {
                "live": sums_here.get(WHY[LIVE], (0, 0)),
                "open": sums_here.get(WHY[OPEN], (0, 0)),
                "condemned": (sum(n for n, _ in condemned), nbytes),
                "due": self.due.get(dataset, (0, 0)),
            }
            row: dict[str, Any] = {"dataset": dataset, "owner": self.owners.get(dataset, "")}
            for name, (objects, held) in parts.items():
                row |= {f"{name}_objects": objects, f"{name}_bytes": held}
            row["condemned_usd_per_month"] = round(nbytes / 2**30 * self.price_usd(price), 4)
            row["why"] = {what: sums[0] for what, sums in sorted(sums_here.items()) if what not in _STAYS}
            rows.append(row)
        return rows

    def to_json(self, price: float | None = None) -> dict[str, Any]:
        """Return the report as plain JSON."""
        foreign = self.tally.sums.get(("", WHY[FOREIGN]), (0, 0))
        return {
            "root": self.url,
            "collector": self.collector,
            "applied": self.applied,
            "grace_s": self.grace_s,
            "usd_per_gib_month": self.price_usd(price),
            "datasets": self.rows(price),
            "silent_transactions": list(self.silent),
            "foreign": {"objects": foreign[0], "bytes": foreign[1], "some": list(self.tally.foreign)},
            "swept": {
                "objects": self.swept.objects,
                "bytes": self.swept.nbytes,
                "why": dict(sorted(self.swept.why.items())),
                "records": list(self.swept.records),
                "spared": self.swept.spared,
                "capped": self.swept.capped,
                "too_large": {"objects": self.swept.n_too_large, "some": dict(self.swept.too_large)},
                "refused": {"objects": self.swept.n_refused, "some": dict(self.swept.refused)},
            },
        }

    def to_text(self, price: float | None = None) -> str:
        """Return a table, then silent transactions and foreign objects."""
        lines = [
            f"{'dataset':<20} {'owner':<12} {'live':>18} {'condemned':>18} {'due':>18} {'USD/month':>10}"
        ]
        for row in self.rows(price):
            cells = [
                f"{row[f'{name}_objects']} / {size(row[f'{name}_bytes'])}"
                for name in ("live", "condemned", "due")
            ]
            lines.append(
                f"{row['dataset'] or '-':<20} {row['owner'] or '-':<12} "
                + " ".join(f"{cell:>18}" for cell in cells)
                + f" {row['condemned_usd_per_month']:>10.2f}"
            )
            lines += [f"    {count:>8} {what}" for what, count in row["why"].items()]
        aborted = "aborted" if self.applied else "would be aborted"
        lines += [f"transaction {txn}: no sign of life, {aborted}" for txn in self.silent]
        objects, nbytes = self.tally.sums.get(("", WHY[FOREIGN]), (0, 0))
        if objects:
            named = self.tally.foreign[:5]
            more = f" and {objects - len(named)} more" if objects > len(named) else ""
            lines.append(f"{objects} foreign objects ({size(nbytes)}) are ignored: {', '.join(named)}{more}")
        return "\n".join(lines)

    def swept_text(self) -> str:
        """Return the sweep's human-readable result."""
        done = self.swept
        what = "deleted" if self.applied else "would be deleted (--apply does it)"
        more = "; more is due than the caps allow: run it again" if done.capped else ""
        spared = f"; {done.spared} were needed again" if done.spared else ""
        large = f"; {done.n_too_large} are larger than --max-bytes, and stay" if done.n_too_large else ""
        refused = f"; {done.n_refused} could not be deleted:" if done.n_refused else ""
        first = f"{done.objects} objects, {size(done.nbytes)} {what}{spared}{more}{large}{refused}"
        return "\n".join([first, *(f"{key}: {why}" for key, why in done.refused.items())])
