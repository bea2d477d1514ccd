"""Engines that run a job's blocks."""
