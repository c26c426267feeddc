"""The version of this release, which executors compare with the driver's."""

VERSION = "0.1.0"
