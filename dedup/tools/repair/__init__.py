"""Inspect, verify, clean up and restore a catalog.

Functions that take a `Root` raise CatalogError if it cannot be read or written.
"""
