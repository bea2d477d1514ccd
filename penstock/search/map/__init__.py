"""Maps of a version: fit, place, select by a lasso, draw."""
