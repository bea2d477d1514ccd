"""How fast the viewer answers, and what it takes for it. `python -m benchmarks.view`."""
