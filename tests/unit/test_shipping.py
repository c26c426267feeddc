"""What travels to executors; tests/cluster sends them to executors without the package."""

from __future__ import annotations

import io
import threading
import traceback
from functools import partial
from typing import Any

import pytest
from pyspark import cloudpickle

import dedup
from dedup.cli.failures import explain
from dedup.errors import ConfigError, ExecutorError
from dedup.spark.driver.shipping import shipped
from dedup.values.duration import duration_ms
from tests.support.processes import python


class Counted:
    """Notes how often it is unpickled."""

    unpickled = 0

    def __setstate__(self, state: Any) -> None:
        Counted.unpickled += 1

    def __getstate__(self) -> str:
        return "something"


def held(value: Any, more: int) -> tuple[Any, int]:
    return value, more


def sent(function: Any) -> Any:
    """What a worker receives."""
    return cloudpickle.loads(cloudpickle.dumps(function))


def test_a_shipped_function_arrives_unchanged() -> None:
    assert sent(shipped(duration_ms))() is duration_ms
    assert sent(shipped(partial(held, "x")))()(2) == ("x", 2)


def test_shipped_bytes_name_no_module_of_the_package() -> None:
    data = cloudpickle.dumps(shipped(duration_ms))
    imported: set[str] = set()

    class Watching(cloudpickle.pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            imported.add(module.partition(".")[0])
            return super().find_class(module, name)

    Watching(io.BytesIO(data)).load()
    assert imported
    assert "dedup" not in imported


def test_a_shipped_function_is_unpickled_once_per_process() -> None:
    Counted.unpickled = 0
    load = sent(shipped(partial(held, Counted())))
    assert load() is load() is sent(load)()
    assert Counted.unpickled == 1
    assert sent(shipped(partial(held, "other")))() is not load()


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    load = sent(shipped(duration_ms))
    wanted = dedup.__version__
    monkeypatch.setattr(dedup, "__version__", "0.0.9")
    with pytest.raises(
        ImportError, match=rf"has rolling-dedup 0\.0\.9 .*Install .*=={wanted}"
    ) as e:
        load()
    # What the driver sees of it is text.
    told = traceback.format_exception_only(e.value)[0]
    assert told.startswith(f"{ExecutorError.__module__}.{ExecutorError.__name__}: The executor on ")
    assert explain(RuntimeError(told)).kind == "ExecutorError"


def test_a_module_that_only_the_driver_has_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nowhere:
        def __reduce__(self) -> Any:
            return __import__, ("no_such_module",)

    load = sent(shipped(partial(held, Nowhere())))
    with pytest.raises(ImportError, match=r"No module named 'no_such_module'.*Install that module"):
        load()


def test_a_function_that_cannot_be_pickled_is_rejected_on_the_driver() -> None:
    with pytest.raises(ConfigError, match=r"cannot be sent to executors: .*lock"):
        shipped(partial(held, threading.Lock()))


@pytest.mark.parametrize("name", ["pack", "unpack"])
def test_pack_and_unpack_load_neither_pandas_nor_rocksdict(name: str) -> None:
    """Each Python worker imports it in the first micro-batch; pandas would be most of that."""
    loaded = "print({'pandas', 'rocksdict'} & {*sys.modules})"
    code = f"import sys, dedup.spark.executor.{name}; {loaded}"
    assert python("-c", code).stdout.strip() == "set()"
