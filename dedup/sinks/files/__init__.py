"""The sink that writes folders of files. Each micro-batch appears whole and once."""
