"""Launchers: they begin a run's processes, and begin them again."""
