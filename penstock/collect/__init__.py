"""The collector: which stored bytes nobody needs any more, for how long that has been so, and their deletion."""

from .clock import Moment
from .collector import Options, collect
from .retention import Policy, retire_by_policy, retirements

__all__ = ["Moment", "Options", "Policy", "collect", "retire_by_policy", "retirements"]
