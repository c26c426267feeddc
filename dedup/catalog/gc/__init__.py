"""Decide what may be deleted at a catalog root, and who may delete it.

Every function that takes a `Root` raises CatalogError if the root cannot be read or written.
"""
