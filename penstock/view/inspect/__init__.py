"""Questions about trainings and versions, answered by frozen records that web, terminal and command line show alike."""
