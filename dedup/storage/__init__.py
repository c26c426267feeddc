"""Folders on any file system, and the documents in them, read and written safely.

Where to find a rule:

======================================================= =============================
objects appear whole and durable, or not at all         `root`, `localfile`
paths, URIs, and where a folder is                      `location`, `uri`
a document's version and checksum                       `document`
how long storage may take to answer                     `timeouts`
======================================================= =============================
"""
