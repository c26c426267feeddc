"""Folders on any file system, and the documents in them, read and written safely."""
