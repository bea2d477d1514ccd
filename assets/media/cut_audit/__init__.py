"""Audit cut units against their source, independently of the cutters."""
