"""Engines that place the blocks of a job."""
