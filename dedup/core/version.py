"""The version of this release. Executors compare theirs with the driver's."""

VERSION = "0.2.0.dev0"
