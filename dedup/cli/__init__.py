"""The `dedup` command, a shell over the operator: Python can do all that the command does."""
