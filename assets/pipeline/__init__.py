"""Foundations of every stage: its run and record, and the tables of its result."""
