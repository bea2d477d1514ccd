"""Sections as lines of characters."""
