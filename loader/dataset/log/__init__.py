"""The log of a root: entries, the state that they fold to, append rules, hints, takedowns and references."""
