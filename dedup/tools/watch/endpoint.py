"""A driver's endpoint, read back: `dedup watch` from where the metrics log is not."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import Future
from http.client import HTTPException, IncompleteRead

from dedup.errors import ConfigError
from dedup.tools.watch.query_log import QueryLog
from dedup.tools.watch.watched import Watched

#: Where the micro-batches of every query are served, beside ``/metrics``.
PATH = "/queries.json"
#: For each step of an answer, and for all of it.
_TIMEOUT_S, _ANSWER_S = 5.0, 10.0
#: A hundred micro-batches of each of a hundred queries are smaller.
_ANSWER_BYTES = 64 << 20


class Endpoint:
    """Watches the queries of the driver that serves a URL.

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
        self.url = url.rstrip("/").removesuffix("/metrics") + PATH
        #: By what a query is called; what an earlier look found is kept.
        self._logs: dict[str, QueryLog] = {}
        #: The last answer, which may still be under way.
        self._answer: Future[bytes] | None = None
        #: Why the last look showed nothing new, None where it did not fail.
        self.trouble: str | None = None

    def look(self, now_ms: int) -> list[Watched]:
        """Return every query that was seen so far, also by earlier looks alone.

        Raises
        ------
        ConfigError
            When the endpoint was never reached, or is none of ours.
        """
        logs: dict[str, QueryLog] = {}
        try:
            logs = _queries(self._ask())
            # A driver that began anew knows of a query from its first micro-batch on.
            missing = ", ".join(sorted(self._logs.keys() - logs.keys()))
            self.trouble = (
                f"{self.url} tells nothing of {missing} any more: what follows is what it said last"
                if missing
                else None
            )
        except (OSError, ValueError, HTTPException) as error:
            self.trouble = f"no answer from {self.url} ({error}): what follows is what it said last"
            if not self._logs:
                raise ConfigError(
                    f"{self.url} gives no metrics of dedup ({error}): the driver is gone, or it is "
                    "not the address that DedupListener(prometheus_port=...) serves"
                ) from error
        self._logs |= logs
        # A driver that answers hears of every end.
        return [
            log.watched(now_ms, alive=log.running and name in logs)
            for name, log in self._logs.items()
        ]

    def _ask(self) -> bytes:
        """Return the whole answer; TimeoutError where it takes too long."""
        late = f"its answer takes longer than {_ANSWER_S:g} s"
        if self._answer is not None and not self._answer.done():
            raise TimeoutError(late)
        # A server may drip bytes in any part of an answer: no timeout of a socket ends that.
        answer: Future[bytes] = Future()
        self._answer = answer
        threading.Thread(target=_fetch, args=(self.url, answer), daemon=True).start()
        try:
            return answer.result(_ANSWER_S)
        except TimeoutError as error:
            raise TimeoutError(str(error) or late) from error


def _queries(answer: bytes) -> dict[str, QueryLog]:
    try:
        body = json.loads(answer)
        served = body["queries"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its answer is none of DedupListener: {error}") from error
    try:
        logs = [QueryLog.from_json(entry) for entry in served]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"the driver has another release of rolling-dedup, or tells what cannot be: {error}"
        ) from error
    return {log.name or log.query_id: log for log in logs}


def _fetch(url: str, answer: Future[bytes]) -> None:
    try:
        answer.set_result(_read(url))
    except urllib.error.HTTPError as error:
        answer.set_exception(ValueError(str(error)))
    except BaseException as error:
        answer.set_exception(error)


def _read(url: str) -> bytes:
    end_s = time.monotonic() + _ANSWER_S
    body = bytearray()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        while more := response.read1(1 << 16):
            body += more
            if len(body) > _ANSWER_BYTES:
                raise ValueError(f"its answer is longer than {_ANSWER_BYTES >> 20} MiB")
            if time.monotonic() > end_s:
                raise TimeoutError
        if response.length:
            raise IncompleteRead(bytes(body), response.length)
    return bytes(body)
