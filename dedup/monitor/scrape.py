"""An exporter's endpoint, read back: `dedup watch` from where the metrics log is not."""

from __future__ import annotations

import math
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import replace
from http.client import HTTPException, IncompleteRead
from typing import Any

from dedup.core.forecast import BANDS
from dedup.core.metrics import MAXIMA, STAGES, SUMS, VERDICTS, BatchMetrics
from dedup.errors import ConfigError, MissingExtraError
from dedup.monitor.health import ENDED, HISTORY, Health, Status
from dedup.monitor.series import (
    CHECKPOINT_BEGUN,
    CLOCK,
    EVIDENCE,
    FAILED,
    HEARD,
    HOLDER,
    LAST_BATCH,
    PREFIX,
    RUN_BEGUN,
    RUNNING,
    SERIES,
    STATUS,
)
from dedup.monitor.watched import Watched

try:
    from prometheus_client.parser import text_string_to_metric_families
except ModuleNotFoundError as error:
    raise MissingExtraError("metrics", "Reading a Prometheus endpoint") from error

#: For each step of an answer, and for all of it.
_TIMEOUT_S, _ANSWER_S = 5.0, 10.0
#: An exporter with all the queries that one serves says a few MiB.
_ANSWER_BYTES = 32 << 20
#: By exported name and the values of the labels beside `query`, "" where there is none.
Scraped = dict[tuple[str, ...], float]
#: An endpoint does not say more.
_FAILED = "the run has failed; the driver's log says why"
#: Where the driver has seen more than this command.
_REASONS = {
    Status.OK: "well, by all that its driver has seen",
    Status.LAGGING: "its driver sees a lag that grows",
    Status.STALLED: "its driver sees the GC watermark stand while timestamps advance",
    Status.STOPPED: _FAILED,
    Status.REWOUND: "its driver saw it go back, or a shard of it",
}


class Endpoint:
    """Watches the queries of one exporter; each look at a new micro-batch adds to the window.

    Parameters
    ----------
    url : str
        With or without ``/metrics``.

    Raises
    ------
    ConfigError
        When the URL holds a user or a password.
    """

    def __init__(self, url: str) -> None:
        if "@" in url:
            # Which part is the password shows only where it is well formed: none of it is told.
            raise ConfigError(
                "the URL holds a user or a password ('@'), which dedup watch cannot send: give it "
                "without, as the endpoint of DedupListener asks for none"
            )
        self.url = url if url.rstrip("/").endswith("/metrics") else url.rstrip("/") + "/metrics"
        self._batches: dict[str, list[tuple[int, BatchMetrics]]] = {}
        self._before: dict[str, Scraped] = {}
        self._ended: dict[str, str | None] = {}
        self._heard_ms: dict[str, int] = {}
        #: What the driver itself says of each query, and on how many micro-batches it rests.
        self._verdicts: dict[str, tuple[Status, int]] = {}
        #: The last answer, which may still be under way.
        self._answer: Future[bytes] | None = None
        #: Why the last look showed nothing new, None where it did not fail.
        self.trouble: str | None = None

    def look(self, now_ms: int) -> list[Watched]:
        """Scrape once and return every query that was seen so far, also by earlier looks alone.

        Raises
        ------
        ConfigError
            When the endpoint was never reached, or is none of ours.
        """
        try:
            self._take(told := self._scrape())
            # A driver that began anew knows of a query from its first micro-batch on.
            gone = ", ".join(sorted(self._batches.keys() - told.keys()))
            self.trouble = (
                f"{self.url} tells nothing of {gone} any more: what follows is what it said last"
                if gone
                else None
            )
        except (OSError, ValueError, KeyError, ArithmeticError, HTTPException) as error:
            self.trouble = f"no answer from {self.url} ({error}): what follows is what it said last"
            if not self._batches:
                raise ConfigError(
                    f"{self.url} gives no metrics of dedup ({error}): the driver is gone, or it is "
                    "not the address that DedupListener(prometheus_port=...) serves"
                ) from error
            self._verdicts.clear()
        return [self._watched(name, now_ms) for name in self._batches]

    def _watched(self, name: str, now_ms: int) -> Watched:
        verdict = self._verdicts.get(name)
        own = Watched.of(
            name,
            name,
            self._batches[name],
            now_ms=now_ms,
            heard_ms=self._heard_ms[name],
            ended=self._ended[name],
            # A driver that answers hears of every end.
            alive=verdict is not None and self._ended[name] is None,
        )
        if verdict is None:
            return own
        status, evidence = verdict
        knows = own.health.evidence >= evidence or status is Status.STOPPED
        agreed = status is own.health.status and knows
        reason = own.health.reason if agreed else _REASONS[status]
        return replace(own, health=Health(status, reason, evidence))

    def _scrape(self) -> dict[str, Scraped]:
        text = self._ask().decode()
        queries: defaultdict[str, Scraped] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = dict(sample.labels)
                if sample.name.startswith("dedup_") and "query" in labels:
                    if not math.isfinite(sample.value):
                        raise ValueError(f"{sample.name} is {sample.value}")
                    query = labels.pop("query")
                    beside = [value for _, value in sorted(labels.items())] or [""]
                    queries[query][sample.name, *beside] = sample.value
        return dict(queries)

    def _ask(self) -> bytes:
        """The whole answer, TimeoutError where it takes too long."""
        late = f"its answer takes longer than {_ANSWER_S:g} s"
        if self._answer is not None and not self._answer.done():
            raise TimeoutError(late)
        # A server may drip bytes in any part of an answer: no timeout of a socket ends that.
        asked: Future[bytes] = Future()
        self._answer = asked
        threading.Thread(target=_fetch, args=(self.url, asked), daemon=True).start()
        try:
            return asked.result(_ANSWER_S)
        except TimeoutError as error:
            raise TimeoutError(str(error) or late) from error

    def _take(self, queries: dict[str, Scraped]) -> None:
        self._verdicts.clear()
        for name, scraped in queries.items():
            ended = _FAILED if scraped.get((FAILED, "")) else ENDED
            at_ms, heard_ms = (round(scraped[at, ""] * 1000) for at in (LAST_BATCH, HEARD))
            known = self._batches.get(name, [])
            is_new = not known or known[-1][0] < at_ms
            if is_new:
                made = _micro_batch(name, scraped, self._before.get(name, {}))
                known = [*known[1 - HISTORY :], (at_ms, made)]
            # From here on nothing fails: a query is known with a micro-batch, or not at all.
            running = scraped.get((RUNNING, ""), 1) and ended == ENDED
            self._ended[name] = None if running else ended
            if verdict := _verdict(scraped):
                self._verdicts[name] = verdict
            self._heard_ms[name] = heard_ms
            self._batches[name] = known
            if is_new:
                self._before[name] = scraped


def _fetch(url: str, asked: Future[bytes]) -> None:
    try:
        asked.set_result(_read(url))
    except urllib.error.HTTPError as error:
        asked.set_exception(ValueError(str(error)))
    except BaseException as error:
        asked.set_exception(error)


def _read(url: str) -> bytes:
    end_s = time.monotonic() + _ANSWER_S
    told = bytearray()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        while more := answer.read1(1 << 16):
            told += more
            if len(told) > _ANSWER_BYTES:
                raise ValueError(f"its answer is longer than {_ANSWER_BYTES >> 20} MiB")
            if time.monotonic() > end_s:
                raise TimeoutError
        if answer.length:
            raise IncompleteRead(bytes(told), answer.length)
    return bytes(told)


def _verdict(scraped: Scraped) -> tuple[Status, int] | None:
    told = [status for status in Status if scraped.get((STATUS, str(status)))]
    return (told[0], round(scraped.get((EVIDENCE, ""), 0))) if told else None


def _micro_batch(name: str, scraped: Scraped, before: Scraped) -> BatchMetrics:
    """What was done since the look before as one micro-batch; what is not exported is 0 or None.

    Its times are those of one of them, on average.
    """
    values: dict[str, Any] = dict.fromkeys(SUMS, 0) | dict.fromkeys(MAXIMA[2:])
    values |= {
        "query_id": name, "run_id": str(scraped.get((RUN_BEGUN, ""), "")), "query_name": name,
        "batch_ms": 0, "gc_shard": None, "gc_watermark_ms": None, "fullest_shard": 0,
        "branches": 0, "epochs_apart": 0, "target_fpr": 0.0, "stage_us": dict.fromkeys(STAGES, 0),
    }  # fmt: skip
    begun = scraped.get((CHECKPOINT_BEGUN, ""))
    values["begins"] = begun is not None and begun != (before or scraped).get(
        (CHECKPOINT_BEGUN, "")
    )
    values["gc_source"] = next((key[1] for key in scraped if key[0] == HOLDER), None)
    values["slowest_sources"] = tuple(
        (key[1], round(value * 1000), key[2] == "idle")
        for key, value in scraped.items()
        if key[0] == CLOCK
    )
    bands = [[0, 0] for _ in range(BANDS)]
    for series in SERIES:
        for label, field in series.fields.items():
            value = scraped.get((series.exported, label))
            if value is None:
                continue
            if series.kind == "counter":
                # Of most nobody knows how much of the first count is new; damage is told anyway.
                first = 0.0 if before or field == "epochs_apart" else value
                last = before.get((series.exported, label), first)
                # Counts begin anew with the driver.
                value -= last if value >= last else 0.0
            head, *rest = field.split(".")
            exact = value / series.unit
            if head == "stage_us":
                values[head][rest[0]] = round(exact)
            elif head == "expiring":
                bands[int(rest[0])][int(rest[1])] = round(exact)
            else:
                values[head] = exact if head == "target_fpr" else round(exact)
    since = before.get((f"{PREFIX}batch_id", ""), values["batch_id"])
    passed = max(1, round(values["batch_id"] - since))
    values["batch_ms"] = round(values["batch_ms"] / passed)
    values["stage_us"] = {name: round(us / passed) for name, us in values["stage_us"].items()}
    values["expiring"] = tuple((ids, size) for ids, size in bands)
    values["records_in"] = sum(values[verdict] for verdict in VERDICTS)
    try:
        return BatchMetrics.from_json(values)
    except ValueError as error:
        raise ValueError(
            f"the driver has another release of rolling-dedup, or tells what cannot be: {error}"
        ) from error
