"""Rollouts for the viewer: their tokens, turns and groups, packed documents, and decisions of online runs."""
