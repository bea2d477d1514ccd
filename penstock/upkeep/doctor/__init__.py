"""`penstock doctor`: check whether a store can hold a root, and which settings endanger it.

A probe is a function in `examine.PROBES` that yields findings and may raise `StoreError`.
"""
