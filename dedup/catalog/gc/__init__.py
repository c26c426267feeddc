"""What may be deleted at a catalog root, and who may delete it.

Every function that is given a `Root` raises CatalogError when it cannot be read or written.
"""
