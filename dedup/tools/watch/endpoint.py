"""Read a driver's endpoint: `dedup watch` without access to the metrics log."""

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

#: Path of the micro-batches of all queries, beside ``/metrics``.
PATH = "/queries.json"
#: Time limits of each step of an answer, and of the whole.
_TIMEOUT_S, _ANSWER_S = 5.0, 10.0
#: Larger than a hundred micro-batches of each of a hundred queries.
_ANSWER_BYTES = 64 << 20


class Endpoint:
    """Watches the queries of a driver by its URL, with or without ``/metrics``.

    Raises
    ------
    ConfigError
        If the URL contains a user or a password.
    """

    def __init__(self, url: str) -> None:
        if "@" in url:
            # The error shows no part of the URL: in a malformed one, any could be the password.
            raise ConfigError(
                "the URL contains a user or a password ('@'), which dedup watch cannot send. Leave "
                "them out: the endpoint of DedupListener asks for none."
            )
        self.url = url.rstrip("/").removesuffix("/metrics") + PATH
        #: Queries by name, also from earlier looks.
        self._logs: dict[str, QueryLog] = {}
        #: The last answer, which may still be incomplete.
        self._answer: Future[bytes] | None = None
        #: Why the last look failed, or None.
        self.trouble: str | None = None

    def look(self, now_ms: int) -> list[Watched]:
        """Return all queries of this and of earlier looks.

        Raises
        ------
        ConfigError
            If the endpoint was never reached, or does not belong to DedupListener.
        """
        logs: dict[str, QueryLog] = {}
        try:
            logs = _queries(self._ask())
            # A restarted driver knows a query from its first micro-batch on.
            missing = ", ".join(sorted(self._logs.keys() - logs.keys()))
            self.trouble = (
                f"{self.url} no longer shows {missing}: its last known state follows"
                if missing
                else None
            )
        except (OSError, ValueError, HTTPException) as error:
            self.trouble = f"no answer from {self.url} ({error}): the last known state follows"
            if not self._logs:
                raise ConfigError(
                    f"{self.url} serves no metrics of dedup ({error}). Check that the driver runs, "
                    "and that DedupListener(prometheus_port=...) serves this address."
                ) from error
        self._logs |= logs
        # A driver that answers knows every end.
        return [
            log.watched(now_ms, alive=log.running and name in logs)
            for name, log in self._logs.items()
        ]

    def _ask(self) -> bytes:
        """Return the whole answer; TimeoutError if it takes too long."""
        late = f"its answer takes longer than {_ANSWER_S:g} s"
        if self._answer is not None and not self._answer.done():
            raise TimeoutError(late)
        # No socket timeout stops a server that sends single bytes slowly.
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
        raise ValueError(f"its answer is not from DedupListener: {error}") from error
    try:
        logs = [QueryLog.from_json(entry) for entry in served]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"the driver has another release of rolling-dedup, or invalid metrics: {error}"
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
