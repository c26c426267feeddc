"""Sinks that publish each micro-batch whole and once."""
