"""`penstock doctor`: check whether a store can hold a root, and which of its settings endanger one.

A probe is a function and a line in `examine.PROBES`: it yields findings, and may raise `StoreError`.
"""
