"""List prices of moving bytes out of a cloud, in US dollars: a rough guide, to be replaced by one's own contract's.

From the providers' public price pages, standard storage in a US region, first tier, without free amounts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """List prices of one provider, US dollars."""

    egress: float = 0.0
    """Per GB (1e9 bytes) that leaves the provider."""
    read: float = 0.0
    """Per 1,000 reads."""
    write: float = 0.0
    """Per 1,000 writes."""


BY_SCHEME = {
    **dict.fromkeys(("s3", "s3a"), Prices(egress=0.09, read=0.0004, write=0.005)),
    **dict.fromkeys(("gs", "gcs"), Prices(egress=0.12, read=0.0004, write=0.005)),
    **dict.fromkeys(("az", "abfs", "abfss"), Prices(egress=0.087, read=0.0005, write=0.0065)),
}


def prices_of(url: str) -> Prices:
    """Return the prices of the provider that a URL's scheme names; zeros for disks and others."""
    return BY_SCHEME.get(url.partition("://")[0], Prices())
