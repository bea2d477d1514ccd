"""Selection of samples, journal and outbox, shared by all exports."""
