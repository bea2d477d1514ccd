"""Nodes: suspicion from what trainings record, proof, and quarantine within limits."""
