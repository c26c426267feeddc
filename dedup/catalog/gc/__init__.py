"""What may be deleted at a catalog root, and who may delete it."""
