"""Records that answer questions about trainings and versions, for web, terminal and command line alike."""
