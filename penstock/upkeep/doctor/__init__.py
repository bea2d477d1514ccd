"""`penstock doctor`: can this store be trusted with a root, how fast is it, and which settings fit it.

A probe is a function of one file here and a line in `examine.PROBES`: it yields findings, and may raise `StoreError`.
"""
