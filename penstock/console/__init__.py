"""The command line around its verbs: tables, the hint after an error, completion in the shell."""
