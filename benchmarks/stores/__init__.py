"""How fast stores are read, filled and emptied, beside the tools that others use. `python -m benchmarks.stores`.

A part is a module here: `measure` gives turns, `section` what the page says of them. `reads` are ranges, `transfers`
whole files, up and down, `migration` from bucket to bucket. Another is its module, a function in `__main__` and a line
in its PARTS.
"""
