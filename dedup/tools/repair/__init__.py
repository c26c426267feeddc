"""Looking after a catalog: what it holds, what is damaged, and how a query goes on.

Every function that is given a `Root` raises CatalogError when it cannot be read or written.
"""
