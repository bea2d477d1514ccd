"""The code that a training runs."""
