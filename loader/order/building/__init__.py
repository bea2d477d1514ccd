"""From a caller's arguments to the content of a plan: one module per kind of source."""
