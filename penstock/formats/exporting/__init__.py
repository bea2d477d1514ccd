"""The choice of samples, the journal and the outbox, which all exports share."""
