"""Registration: versions over objects that stay where they are."""
