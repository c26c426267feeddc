"""The `dedup` command: a shell over the operator, nothing that it alone can do."""
