"""Reads of parts of a sample: windows of episodes, packets of videos, blocks of long arrays."""
