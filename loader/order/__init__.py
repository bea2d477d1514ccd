"""The order: which sample is in which batch, as a pure function of the plan and the step (docs/order.md)."""
