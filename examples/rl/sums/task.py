"""Sums of two numbers below 100, as token ids: prompts, rewards, and the sums that no training sees.

The prompt "37+45=" has six tokens. The answer has its lowest digit first, "28", because a carry moves that way.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

PLUS, EQUALS, END, PAD = 10, 11, 12, 13
N_TOKENS = 14
"""Ids of the vocabulary: ten digits and four signs."""
NUMBERS = 100
PROMPT_TOKENS, ANSWER_TOKENS = 6, 4
"""Most tokens of a prompt and of an answer, END included."""
_HELD_OUT_EVERY = 20
_MOST_CONSOLATION = 0.3


@dataclass(frozen=True, slots=True)
class Sum:
    """A prompt: the sum of two numbers."""

    first: int
    second: int

    @property
    def name(self) -> str:
        return f"{self.first}+{self.second}"

    def prompt(self) -> list[int]:
        """Return the token ids of "37+45="."""
        return [*divmod(self.first, 10), PLUS, *divmod(self.second, 10), EQUALS]

    def answer(self) -> list[int]:
        """Return the token ids of the right answer, lowest digit first, with END."""
        digits = [int(digit) for digit in reversed(str(self.first + self.second))]
        return [*digits, END]


@cache
def sums(*, held_out: bool) -> list[Sum]:
    """Return the sums that are held out (one in twenty), or all others."""
    draw = np.random.default_rng(53)
    numbers = draw.permutation(NUMBERS * NUMBERS)
    first_trained = len(numbers) // _HELD_OUT_EVERY
    chosen = numbers[first_trained:]
    if held_out:
        chosen = numbers[:first_trained]
    return [Sum(*divmod(int(number), NUMBERS)) for number in chosen]


def reward(question: Sum, sampled: list[int]) -> float:
    """Return 1 for the right answer, and less than 0.3 for another one: 0.3 of the share of right tokens.

    Few answers of an untrained policy are right, and a group of equal rewards teaches nothing.
    """
    answer = question.answer()
    if sampled == answer:
        return 1.0
    n_right = sum(mine == right for mine, right in zip(sampled, answer, strict=False))
    return _MOST_CONSOLATION * n_right / max(len(answer), len(sampled))


def text(answer: list[int]) -> str:
    """Return an answer as it is read, highest digit first."""
    digits = [str(token) for token in answer if token < PLUS]
    return "".join(reversed(digits))


def prompts(questions: list[Sum]) -> NDArray[np.int64]:
    """Return the prompts, int64 [n, PROMPT_TOKENS]: all have one length."""
    return np.array([question.prompt() for question in questions], np.int64)
