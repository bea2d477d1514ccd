"""Clips: canonical ones that are encoded, reference ones that keep the bytes."""
