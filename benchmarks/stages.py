"""Where a micro-batch's time goes: the driver, Spark's stages, our Python, and what is left.

    python -m benchmarks.stages --batches 8

Times of our Python are taken inside the workers, in wrappers that only this benchmark puts
around the three passes; they come back through an accumulator. Of each pass ``own`` is our code,
``input`` is waiting for rows and decoding them, ``output`` is everything that Spark does with what
was yielded. CPU times count: wall times of a shared machine are hints.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import SparkSession

from benchmarks.contenders import operator
from benchmarks.cpu import Cpu
from benchmarks.events import SCHEMAS, Events
from benchmarks.harness import Pipeline, data_folder, machine, parser, session, work_folder
from dedup.spark.driver import build

#: Parts of ``durationMs`` in the order in which they happen.
DRIVER = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets",
          "triggerExecution")  # fmt: skip
PASSES = ("pack", "group", "unpack")
PARTS = ("input", "own", "output")


class _Lists(AccumulatorParam[list[Any]]):
    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
        return value1 + value2


@contextmanager
def timed_passes(spark: SparkSession) -> Iterator[Callable[[], dict[str, dict[str, float]]]]:
    """Wrap the operator's passes; yields what takes the times since it was last called, in ms."""
    told = spark.sparkContext.accumulator([], _Lists())

    def wrapped(name: str, work: Callable[..., Iterator[Any]], feed: int) -> Callable[..., Any]:
        def run(*given: Any) -> Iterator[Any]:
            from time import perf_counter, process_time  # pickled by value, imports included

            spent = {f"{part}_{clock}": 0.0 for part in PARTS for clock in ("cpu", "wall")}
            last = [process_time(), perf_counter()]

            def lap(part: str) -> None:
                now = [process_time(), perf_counter()]
                spent[f"{part}_cpu"] += now[0] - last[0]
                spent[f"{part}_wall"] += now[1] - last[1]
                last[:] = now

            def fed(items: Any) -> Iterator[Any]:
                lap("own")
                for item in items:
                    lap("input")
                    yield item
                    lap("own")
                lap("input")

            arguments = list(given)
            arguments[feed] = fed(given[feed])
            for item in work(*arguments):
                lap("own")
                yield item
                lap("output")
            lap("own")
            told.add([(name, spent)])

        return run

    def take() -> dict[str, dict[str, float]]:
        summed: dict[str, dict[str, float]] = {name: defaultdict(float) for name in PASSES}
        for name, spent in told.value:
            for part, seconds in spent.items():
                summed[name][part] += seconds * 1000
        told.value = []
        return {name: dict(parts) for name, parts in summed.items()}

    # What travels as bytes is unpickled once a process; an accumulator belongs to one task.
    before = build.pack, build.dedup_stream, build.unpack, build.shipped
    build.shipped = lambda value: lambda: value
    build.pack = wrapped("pack", build.pack, 1)
    build.dedup_stream = wrapped("group", build.dedup_stream, 2)
    build.unpack = wrapped("unpack", build.unpack, 1)
    try:
        yield take
    finally:
        build.pack, build.dedup_stream, build.unpack, build.shipped = before


def stages(spark: SparkSession, known: set[int], run_id: str) -> list[dict[str, float]]:
    """Spark's stages of a query that ran since `known`, in their order; `known` grows."""
    context = spark.sparkContext
    store = context._jsc.sc().statusStore()
    jobs = set(context.statusTracker().getJobIdsForGroup(run_id)) - known
    known |= jobs
    ids = sorted(
        {
            number
            for job in jobs
            for info in [context.statusTracker().getJobInfo(job)]
            if info is not None
            for number in info.stageIds
        }
    )
    return [_stage(store.lastStageAttempt(number)) for number in ids]


def _stage(data: Any) -> dict[str, float]:
    def moment(option: Any) -> float:
        return float(option.get().getTime()) if option.isDefined() else float("nan")

    return {
        "tasks": data.numTasks(),
        "wall_ms": moment(data.completionTime()) - moment(data.submissionTime()),
        "run_ms": data.executorRunTime(),
        "cpu_ms": data.executorCpuTime() / 1e6,
        "gc_ms": data.jvmGcTime(),
        "read_mib": data.shuffleReadBytes() / 2**20,
        "fetch_wait_ms": data.shuffleFetchWaitTime(),
        "write_mib": data.shuffleWriteBytes() / 2**20,
        "write_ms": data.shuffleWriteTime() / 1e6,
        "input_mib": data.inputBytes() / 2**20,
    }


def measure(
    spark: SparkSession, pipeline: Pipeline, events: Events, data: Path, arguments: Any
) -> list[dict[str, Any]]:
    """Feed the micro-batches; one dict of figures each."""
    cpu = Cpu.of(spark)
    found: list[dict[str, Any]] = []
    jobs: set[int] = set()
    with timed_passes(spark) as take:
        pipeline.start(spark, arguments.folder)
        query = pipeline.query
        assert query is not None
        for number in range(arguments.batches):
            files = events.write(data, number)
            cpu.lap()
            pipeline.feed(files)
            spent = cpu.lap()
            time.sleep(0.3)  # the status store hears of a stage's end a little later
            progress = next(p for p in reversed(query.recentProgress) if p["numInputRows"])
            state = progress["stateOperators"][0]
            found.append(
                {
                    "driver_ms": dict(progress["durationMs"]),
                    "stages": stages(spark, jobs, str(query.runId)),
                    "state": {
                        "commit_ms": state["commitTimeMs"],
                        "updates_ms": state["allUpdatesTimeMs"],
                        **dict(state["customMetrics"]),
                    },
                    "passes_ms": take(),
                    "cpu_ms": spent,
                }
            )
            print(f"batch {number}: {pipeline.batch_ms[-1]} ms", file=sys.stderr)
        pipeline.stop()
    return found


def medians(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The same shape with the median of every figure; the first micro-batches warm up."""

    def merge(values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, dict):
            names = dict.fromkeys(name for value in values for name in value)
            return {name: merge([v[name] for v in values if name in v]) for name in names}
        if isinstance(first, list):
            return [merge(list(same)) for same in zip(*values, strict=False)]
        return statistics.median(values)

    kept: dict[str, Any] = merge(found)
    return kept


def table(typical: dict[str, Any]) -> str:
    """Write the medians as a table that adds up downwards."""
    driver, passes, cpu = typical["driver_ms"], typical["passes_ms"], typical["cpu_ms"]
    lines = ["driver, wall ms"]
    lines += [f"  {name:40}{driver[name]:9.0f}" for name in DRIVER if name in driver]
    lines.append(f"  state: commit, updates{'':18}{typical['state']['commit_ms']:9.0f}"
                 f"{typical['state']['updates_ms']:9.0f}")  # fmt: skip
    lines.append(f"{'Spark stages':28}" + "".join(f"{n:>14}" for n in typical["stages"][0]))
    for number, stage in enumerate(typical["stages"]):
        lines.append(f"  {number:<26}" + "".join(f"{value:14.1f}" for value in stage.values()))
    lines.append(f"{'Python passes, ms over tasks':28}" + "".join(
        f"{f'{part} {clock}':>14}" for clock in ("cpu", "wall") for part in PARTS))  # fmt: skip
    for name in PASSES:
        lines.append(f"  {name:<26}" + "".join(
            f"{passes[name][f'{part}_{clock}']:14.0f}"
            for clock in ("cpu", "wall") for part in PARTS))  # fmt: skip
    inside = {part: sum(passes[n][f"{part}_cpu"] for n in PASSES) for part in PARTS}
    python = cpu["python"]
    lines += ["CPU ms, all processes"]
    lines += [f"  {f'Python: {part}':40}{inside[part]:9.0f}" for part in PARTS]
    lines.append(f"  {'Python: start and end of tasks':40}{python - sum(inside.values()):9.0f}")
    threads = sorted(cpu["threads"].items(), key=lambda item: -item[1])
    lines += [f"  {f'JVM: {name}':40}{spent:9.0f}" for name, spent in threads if spent >= 5]
    rest = cpu["jvm"] - sum(spent for _, spent in threads if spent >= 5)
    lines.append(f"  {'JVM: other threads':40}{rest:9.0f}")
    lines.append(f"  {'sum':40}{python + cpu['jvm']:9.0f}")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, batches=8, driver_memory="4g")
    options.add_argument("--warm-up", type=int, default=3)
    options.add_argument("--json", type=Path)
    options.add_argument("--shape", choices=SCHEMAS, default="narrow", help="of the rows")
    arguments = options.parse_args()
    events = Events(rows=arguments.rows, duplicates=arguments.duplicates, shape=arguments.shape)
    data = data_folder(arguments.data, events)
    with (
        work_folder(arguments) as arguments.folder,
        session(driver_memory=arguments.driver_memory) as spark,
    ):
        pipeline = Pipeline("dedup_by_id", operator(), schema=events.schema)
        found = measure(spark, pipeline, events, data, arguments)
    typical = medians(found[arguments.warm_up :])
    print(table(typical))
    if arguments.json:
        result = {"machine": machine(), "rows": events.rows, "median": typical, "batches": found}
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
