"""The garbage collector: condemns unneeded objects, and deletes them after a grace period."""

from .clients import Moment
from .collector import Options, collect
from .retention import Policy, retire_by_policy, retirements

__all__ = ["Moment", "Options", "Policy", "collect", "retire_by_policy", "retirements"]
