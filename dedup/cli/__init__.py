"""The `dedup` command. Everything that the command does can also be done in Python."""
