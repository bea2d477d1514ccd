"""Which page goes first: no other choice costs fewer fetches; and memory is never more than was allowed."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.cache.memory import MemoryPages, NextUses
from loader.cache.page_cache import Absence, Grant
from loader.cache.spec import PageMemory, cache_spec
from loader.errors import InvalidRuntime

PAGE = 4096
VERBS = ["claim", "write", "release", "discard", "pass", "forget"]


def fewest_misses(trace, capacity):
    """By trying every choice: at a miss the page may take the place of any other, or of none."""

    @cache
    def best(at, held):
        if at == len(trace):
            return 0
        page = trace[at]
        if page in held:
            return best(at + 1, held)
        if len(held) < capacity:
            return 1 + best(at + 1, held | {page})
        return 1 + min(best(at + 1, held), *(best(at + 1, held - {one} | {page}) for one in held))

    return best(0, frozenset())


def memory(pages):
    return MemoryPages(PageMemory(limit_bytes=pages * PAGE, page_bytes=PAGE), lambda what, n: None)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(trace=st.lists(st.sampled_from("abcdef"), max_size=11), capacity=st.integers(1, 3))
def test_no_choice_costs_fewer_fetches(trace, capacity):
    held, misses = memory(capacity), 0
    for step, page in enumerate(trace):
        held.needs(step, [page])
    for step, page in enumerate(trace):
        held.passed(step + 1)  # what counts is its next use
        answer = held.read(page, [slice(0, 1)], claim=PAGE)
        if isinstance(answer, Grant | Absence):
            misses += 1
        if isinstance(answer, Grant):
            held.put(page, answer.nonce, bytes(PAGE))
        assert held.taken_bytes <= capacity * PAGE
    assert misses == fewest_misses(tuple(trace), capacity)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    script=st.lists(
        st.tuples(
            st.sampled_from(["claim", "write", "release", "discard", "pass", "forget"]), st.integers(0, 5)
        )
    ),
    limit=st.integers(0, 4),
)
def test_memory_holds_what_was_allowed_whatever_is_done(script, limit):
    """What is held and what is set aside together, and nothing is lost count of."""
    held, claimed, there = memory(limit), {}, set()
    for step in range(6):
        held.needs(step, [str(step), str(5 - step)])
    for verb, number in script:
        name = str(number)
        answer = held.read(name, (), claim=PAGE) if verb == "claim" else None
        if isinstance(answer, Grant):
            claimed[name] = answer.nonce
        elif verb == "write":
            # The last page of an object is shorter.
            held.put(name, claimed.pop(name, None), bytes(PAGE - number))
        elif verb == "release":
            held.release(name, claimed.pop(name, None))
        elif verb == "discard":
            held.discard(name)
        elif verb == "pass":
            held.passed(number)
        elif verb == "forget":
            held.forget()
        answers = {str(n): held.read(str(n), ()) for n in range(6)}
        there = {one for one, answer in answers.items() if answer == []}
        assert {one for one, answer in answers.items() if answer is Absence.COMING} == set(claimed)
        assert held.taken_bytes == PAGE * len(claimed) + sum(PAGE - int(one) for one in there)
        assert held.taken_bytes <= limit * PAGE
    held.close()
    assert held.taken_bytes == PAGE * len(claimed)


def test_page_without_a_known_use_goes_before_those_with_one():
    uses = NextUses()
    for name in "abc":
        uses.allow_eviction(name)
    uses.add(3, ["a"])
    uses.add(7, ["b"])
    assert uses.last() == ("c", None)
    uses.drop("c")
    assert uses.last() == ("b", 7)
    uses.passed(4)
    assert uses.last() == ("a", None)
    uses.forget()
    assert {uses.last()[1]} == {None}


@pytest.mark.parametrize("wrong", [-1, True, 1.5, [1]])
def test_what_memory_may_be(wrong):
    with pytest.raises(InvalidRuntime):
        cache_spec(wrong)
    assert cache_spec(None).limit_bytes == 2**30
    assert cache_spec(5).limit_bytes == 5
    assert cache_spec(PageMemory(limit_bytes=10)).shared_by(4).limit_bytes == 2
