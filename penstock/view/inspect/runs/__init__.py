"""Runs over many steps: two of them held against each other, and a stretch of one."""
