from dedup import errors as errors
from dedup import tools as tools
from dedup.core.metrics import BatchMetrics as BatchMetrics
from dedup.core.sequence_metrics import SequenceMetrics as SequenceMetrics
from dedup.sinks.fan_out import split as split
from dedup.sinks.formats import register as register
from dedup.sources import record_id as record_id
from dedup.sources.kafka.stream import kafka_records as kafka_records
from dedup.spark.driver.operator import dedup_by_id as dedup_by_id
from dedup.spark.driver.operator import dedup_by_sequence as dedup_by_sequence
from dedup.spark.idtime import time_from_id as time_from_id
from dedup.tools.check.check_query import check_query as check_query
from dedup.tools.watch.listener import DedupListener as DedupListener

__version__: str
