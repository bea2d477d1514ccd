"""Tables, whose values are no spans of their objects: read once at registration, then by the decoded chunk."""
