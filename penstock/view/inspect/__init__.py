"""Records about training runs and versions, for web, terminal and command line."""
