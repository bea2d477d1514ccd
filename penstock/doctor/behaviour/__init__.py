"""Probes of a store: conditional creates, reads after writes, listings, the clock."""
