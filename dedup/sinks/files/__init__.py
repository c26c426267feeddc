"""Folders of files as a sink: each micro-batch appears whole, once, or not at all."""
