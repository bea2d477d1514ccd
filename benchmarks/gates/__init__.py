"""How well the drift gate tells a regression from an honest batch."""
