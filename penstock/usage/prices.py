"""Read the operator's table of prices, a TOML file.

currency = "USD"
gpu_hour = 2.10
gib_month = 0.023              # of stored bytes
thousand_requests = 0.0004
gib_read = 0.0                 # of bytes that trainings read
"""

import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from loader.errors import InvalidRuntime
from loader.keywords import did_you_mean

from ..text import clean

MOST_BYTES = 65_536
"""A larger file is refused: the path may name anything."""
MOST_PRICE = 1e6
"""Every price is below it."""
GIB = 2**30
_CURRENCY = re.compile("[A-Z]{3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices in one currency; 0 for what costs nothing."""

    currency: str = "USD"
    gpu_hour: float = 0.0
    gib_month: float = 0.0
    """Price of a GiB stored for a month."""
    thousand_requests: float = 0.0
    gib_read: float = 0.0
    """Price of a GiB that trainings read."""

    def storage_price(self, nbytes: int) -> float:
        """Return the price of stored bytes for a month."""
        gib = nbytes / GIB
        return gib * self.gib_month

    def training_price(self, gpu_hours: float, requests: float, nbytes: float) -> float:
        """Return the price of trainings: of their GPUs, requests, and bytes read."""
        gpu_price = gpu_hours * self.gpu_hour
        thousands = requests / 1000
        request_price = thousands * self.thousand_requests
        gib = nbytes / GIB
        transfer_price = gib * self.gib_read
        return gpu_price + request_price + transfer_price


def read_prices(path: str) -> PriceTable:
    """Return the prices of a file. Raises: InvalidRuntime, which names file, key and accepted values."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            # A pipe has no size to ask for: one byte more shows that it is too large.
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        table = tomllib.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRuntime(f"--prices {path} cannot be read as TOML: {clean(error, 200)}") from error
    names = [field.name for field in fields(PriceTable)]
    for name, value in table.items():
        if name not in names:
            near = did_you_mean(name, names)
            shown = clean(name, 40)
            raise InvalidRuntime(
                f"--prices {path}: unknown key {shown!r}; accepted: {', '.join(names)}{near}"
            )
        if name == "currency":
            _check_currency(path, value)
        else:
            _check_price(path, name, value)
    return PriceTable(**table)


def _check_currency(path: str, value: object) -> None:
    # Three letters, as ISO 4217 has them: the text stands in tables.
    if not isinstance(value, str) or not _CURRENCY.fullmatch(value):
        shown = clean(value, 40)
        raise InvalidRuntime(
            f"--prices {path}: currency = {shown!r}; three capital letters are needed, such as USD"
        )


def _check_price(path: str, name: str, value: object) -> None:
    # True is an int.
    is_number = type(value) in (int, float)
    # NaN fails the comparison.
    if not is_number or not 0 <= value < MOST_PRICE:  # type: ignore[operator]
        shown = clean(value, 40)
        raise InvalidRuntime(
            f"--prices {path}: {name} = {shown}; a number from 0 to below {MOST_PRICE:,.0f} is needed",
        )
