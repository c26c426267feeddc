"""Read the metrics that a driver serves over HTTP, for `dedup watch URL`."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException

from dedup.errors import ConfigError
from dedup.tools.watch.query_log import QueryLog
from dedup.tools.watch.watched import Watched

#: Path under which a driver serves the last micro-batches of all queries.
PATH = "/queries.json"
#: Seconds until connecting, or one read, fails.
_TIMEOUT_S = 5.0


class Endpoint:
    """Watches the queries of a driver that serves metrics at a URL.

    The URL may end in ``/metrics``. Raises ConfigError if it contains a user or a password.
    """

    def __init__(self, url: str) -> None:
        if "@" in url:
            # The error shows no part of the URL, because any part of a malformed URL could be the
            # password.
            raise ConfigError(
                "the URL contains a user or a password ('@'), which dedup watch cannot send. Leave "
                "them out: the endpoint of DedupListener asks for none."
            )
        self.url = url.rstrip("/").removesuffix("/metrics") + PATH
        #: Queries by name, including queries that only earlier calls of `look` found.
        self._logs: dict[str, QueryLog] = {}
        #: Why the last call of `look` failed, or None.
        self.trouble: str | None = None

    def look(self, now_ms: int) -> list[Watched]:
        """Return all queries that this or an earlier call found.

        Raises ConfigError if the endpoint was never reached, or does not belong to DedupListener.
        """
        logs: dict[str, QueryLog] = {}
        try:
            logs = _queries(self.url)
            # A restarted driver does not know a query before the query's first micro-batch.
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
        # A driver that answers knows whether its queries run.
        return [
            log.watched(now_ms, alive=log.running and name in logs)
            for name, log in self._logs.items()
        ]


def _queries(url: str) -> dict[str, QueryLog]:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        answer = response.read()
    try:
        logs = [QueryLog.from_json(entry) for entry in json.loads(answer)["queries"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"its answer is not from DedupListener, or from another release: {error}"
        ) from error
    return {log.name or log.query_id: log for log in logs}
