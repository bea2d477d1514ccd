"""Measurements of a video: audit, probe, brightness and stillness, seeking."""
