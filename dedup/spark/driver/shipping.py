"""Sends functions and the plan to executors, which check their package before they load them.

Cloudpickle stores the definitions of an installed module by name. An executor without the package
would fail with Spark's error while it reads its task. So our functions travel as bytes inside a
function that needs only the standard library, and this function raises our error.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from pyspark import cloudpickle

from dedup.core.version import VERSION
from dedup.errors import ConfigError

T = TypeVar("T")


def shipped(value: T) -> Callable[[], T]:
    """Return a function without parameters that returns `value`, on any machine.

    Each process unpickles the value once, and its tasks share the value. If a machine has another
    version of this package or none, the function raises ExecutorError, which names the machine, its
    Python and the remedy. Raises ConfigError if cloudpickle cannot pickle the value.
    """
    try:
        payload: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as exc:
        raise ConfigError(
            f"The operator cannot be sent to executors: {exc}. A function that you pass, "
            "such as catalog=, must not hold connections, locks or sessions: create them inside it."
        ) from exc
    wanted = VERSION

    # The package may be missing on the executor, so every import is inside the function.
    def load() -> T:
        def refusal(what: str, remedy: str) -> Exception:
            import socket
            import sys

            # This class replaces `dedup.errors.ExecutorError`, which may not be importable here.
            error: type[Exception] = type(
                "ExecutorError", (ImportError,), {"__module__": "dedup.errors"}
            )
            return error(
                f"The executor on {socket.gethostname()} cannot run the operator: {what}. Its "
                f"Python is {sys.executable}; the driver has rolling-dedup {wanted}. {remedy}, or "
                "ship an environment that has it with spark.archives, and let PYSPARK_PYTHON "
                "(spark.pyspark.python) name its Python.\n"
                "Remedies: dedup remedies executor-package"
            )

        try:
            dedup = importlib.import_module("dedup")
        except ImportError as error:
            raise refusal(
                f"it cannot import the package ({error})", f"Install rolling-dedup=={wanted} there"
            ) from error
        version = getattr(dedup, "__version__", "without a version")
        if version != wanted:
            raise refusal(
                f"it has rolling-dedup {version} ({getattr(dedup, '__file__', None)})",
                f"Install rolling-dedup=={wanted} there",
            )
        try:
            from dedup.spark.driver.shipping import loaded

            restored: T = loaded(payload)
            return restored
        except ImportError as error:
            raise refusal(str(error), "Install that module there") from error

    return load


@lru_cache(maxsize=32)
def loaded(payload: bytes) -> Any:
    """Return the value whose pickled bytes are given. Each process unpickles the bytes once."""
    return cloudpickle.loads(payload)
