"""Keys of foreign samples: many are checked at once, and are those that each would be alone."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.formats.registration.shard_rows import Rows, part_keys, sample_key

keys = st.lists(
    st.text("ab1/_-.%\n\x7fé", min_size=1, max_size=5) | st.just("k" * 146), min_size=1, max_size=4
)


@given(keys=keys.map(lambda some: list(dict.fromkeys(some))), longest=st.sampled_from(["cls", "cls.txt"]))
@settings(max_examples=50)
@example(keys=["a\nb"], longest="cls")
@example(keys=["__a__"], longest="cls")
def test_keys_that_are_checked_at_once_are_those_that_are_checked_alone(keys, longest):
    alone = [sample_key(key, len(longest)) for key in keys]
    rows = Rows(("a", longest), keys, ["0.tar"] * len(keys))
    assert (len(set(alone)) < len(alone)) or list(part_keys([rows], ())[0]) == alone
