"""The exact catalog: immutable segments at a durable root, read through local RocksDB views."""
