"""The order: which sample is in which batch, as a pure function of the plan and the step (docs/order.md).

Start reading at `slots.stack_slots`; the shuffle is in `random/lanes.py`.
"""
