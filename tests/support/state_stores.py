"""Spark's other state stores: settings that choose one."""

_PREFIX = "spark.sql.streaming.stateStore."
_CLASSES = "org.apache.spark.sql.execution.streaming.state."
ROCKSDB = {_PREFIX + "providerClass": _CLASSES + "RocksDBStateStoreProvider"}
CHANGELOG = ROCKSDB | {_PREFIX + "rocksdb.changelogCheckpointing.enabled": "true"}
CHANGELOG_V2 = CHANGELOG | {_PREFIX + "checkpointFormatVersion": "2"}
STORES = {
    "rocksdb v1": ROCKSDB,
    "rocksdb v1 changelog": CHANGELOG,
    "rocksdb v2 changelog": CHANGELOG_V2,
}
