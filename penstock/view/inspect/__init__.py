"""Records about training runs and versions, shared by the web, the terminal and the command line."""
