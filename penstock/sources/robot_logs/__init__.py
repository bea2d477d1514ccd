"""Logs of robots: messages of topics become the fields of one sample, whichever file they were written to."""
