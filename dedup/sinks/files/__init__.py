"""Folders of files as a sink: micro-batches of any query, each whole, once, or not at all."""
