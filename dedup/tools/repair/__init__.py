"""Inspect, verify, clean up and restore a catalog.

Functions that take a `Root` raise CatalogError if the catalog cannot be read or written.
"""
