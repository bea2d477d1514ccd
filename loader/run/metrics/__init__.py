"""Counters and histograms, the status line, Prometheus text, and the bottleneck."""
