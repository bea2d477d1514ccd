"""`penstock doctor`: check whether a store can hold a root, and which settings endanger it.

A probe is a function listed in `examine.PROBES`. It yields findings, and may raise `StoreError`.
"""
