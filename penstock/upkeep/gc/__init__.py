"""The collector: it finds unneeded stored bytes, counts for how long they were unneeded, and deletes them."""

from .clock import Moment
from .collector import Options, collect
from .retention import Policy, retire_by_policy, retirements

__all__ = ["Moment", "Options", "Policy", "collect", "retire_by_policy", "retirements"]
