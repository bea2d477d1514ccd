"""Importers of robots' data: an episode is a sample."""
