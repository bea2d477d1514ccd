"""Copies of a root elsewhere: mirrors, their promotion, plain prefixes."""
