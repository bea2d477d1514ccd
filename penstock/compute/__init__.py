"""Run data jobs on a cluster or on this machine."""
