"""Tables of the pages, from the results alone: `python -m benchmarks.tables`.

A page has ``<!-- table NAME -->`` in front of a table. The tables below it are replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.bootstrap import ratios as of_operator
from benchmarks.partitions import change, cost
from benchmarks.rebuild import ratios
from benchmarks.results import FOLDER, median
from dedup.core.sizing import interval

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "benchmarks/README.md", ROOT / "dedup/spark/README.md")
OURS = "dedup_by_id"
LOWER_BOUND = "scan + repartition(id)"
#: Contenders of the pipelines, and their names on the pages.
PIPELINES = {
    OURS: "`dedup_by_id`",
    "dropDuplicatesWithinWatermark, HDFS-backed": (
        "`dropDuplicatesWithinWatermark`, HDFS-backed state"
    ),
    "dropDuplicatesWithinWatermark, RocksDB tuned": (
        "`dropDuplicatesWithinWatermark`, RocksDB state, tuned"
    ),
    LOWER_BOUND: "scan + `repartition(id)`: the lower bound",
    "dedup_by_id, into Parquet": "`dedup_by_id`, into Parquet",
    "Delta MERGE of new IDs": "Delta `MERGE` of new IDs, into its table",
}
#: Micro-batches at the end of a window: 4 M and 10 M live IDs (1 M rows each), 3 M (300,000 rows).
_AT_4M, _AT_10M, _AT_3M = 5, 12, 10
_WINDOW = 3
#: An operator has eight buckets, unless `bucket_length` says otherwise.
_BUCKETS = 8


def result(name: str) -> Any:
    """Return what a benchmark kept."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def rows(head: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    titles = list(head)
    marks = ["---", *["---:"] * (len(titles) - 1)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (titles, marks, *lines))


def _window(times: list[int], end: int) -> float | None:
    return median(times[end - _WINDOW : end]) if len(times) >= end else None


def _against(value: float | None, ours: float) -> str:
    return "stopped" if value is None else f"{value:.0f} ({value / ours:.1f}x)"


def pipelines() -> str:
    """Time per micro-batch of every contender, in four shapes."""
    columns = [
        ("4 M, 5 columns", "pipelines", _AT_4M),
        ("10 M, 5 columns", "pipelines", _AT_10M),
        ("3 M, Kafka records of 700 bytes", "pipelines-kafka", _AT_3M),
        ("3 M, 26 columns", "pipelines-wide", _AT_3M),
    ]
    cells: dict[str, list[str]] = {name: [] for name in PIPELINES}
    for _, name, end in columns:
        times = result(name)["batch_ms"]
        ours = _window(times[OURS], end)
        assert ours
        for contender, line in cells.items():
            is_ours = contender == OURS
            line.append(
                f"{ours:.0f}" if is_ours else _against(_window(times[contender], end), ours)
            )
    bounds = [float(cell.split()[0]) for cell in cells[LOWER_BOUND]]
    ratios = [f"{float(ours) / bound:.1f}" for ours, bound in zip(cells[OURS], bounds, strict=True)]
    head = ["live IDs, and rows", *(title for title, _, _ in columns)]
    lines = [[PIPELINES[name], *line] for name, line in cells.items()]
    return rows(head, [["`dedup_by_id` / the lower bound", *ratios], *lines])


def cluster() -> str:
    """Time per micro-batch if bodies pass through Spark's shuffle."""
    names = ("pipelines-kafka", "pipelines-wide")
    built_in = "dropDuplicatesWithinWatermark, HDFS-backed"
    lines: list[list[str]] = [["`dedup_by_id`, as on a cluster"], [PIPELINES[built_in]]]
    for name in names:
        times = result(name)["batch_ms"]
        ours = _window(times["dedup_by_id, as on a cluster"], _AT_3M)
        other = _window(times[built_in], _AT_3M)
        assert ours
        assert other
        lines[0].append(f"{ours:.0f}")
        lines[1].append(f"{other:.0f} ({other / ours:.2f}x)")
    return rows(["ms per micro-batch", "Kafka records of 700 bytes", "26 columns"], lines)


def _runs(*names: str) -> str:
    """Whole processes, the fastest of the first result on top."""
    cells: dict[str, list[str]] = {}
    titles = []
    for found in map(result, names):
        middle = {way: median(times) for way, times in found["seconds"].items() if times}
        for way, s in sorted(middle.items(), key=lambda item: item[1]):
            cells.setdefault(way, []).append(f"{s:.1f} ({s / middle['dedup run']:.2f}x)")
        of = f", {found['file_format'].upper()}" if "file_format" in found else ""
        titles.append(f"{found['rows'] / 1e6:.0f} M rows, {found['shape']}{of}")
    return rows(["s", *titles], ([way, *line] for way, line in cells.items()))


def starts() -> str:
    """A session and its first micro-batch, and the first micro-batch alone."""
    found = result("starts")
    lines = (
        [
            name,
            f"{median(found['started_ms'][name]) / 1e3:.1f}",
            f"{median([times[0] for times in rounds]) / 1e3:.1f}",
        ]
        for name, rounds in found["batch_ms"].items()
    )
    return rows(["s, medians", "session and first micro-batch", "first micro-batch"], lines)


def scale() -> str:
    """Means of our time against the same passes without de-duplication."""
    batches = result("scale")["batches"]
    ours, floor = batches["dedup_by_id"], batches["pack, pass-through state, unpack"]
    live = [batch["metrics"]["live_ids"] / 1e6 for batch in ours]
    edges = (2.9, 12, 35, 58, 81, 104)
    titles, ratios, longest = [], [], []
    for low, high in pairwise(edges):
        chosen = [i for i, ids in enumerate(live) if low < ids <= high and i < len(floor)]
        own = [ours[i]["batch_ms"] for i in chosen]
        bare = [floor[i]["batch_ms"] for i in chosen]
        titles.append(f"{low:.0f} to {live[chosen[-1]]:.0f} M")
        ratios.append(f"{sum(own) / sum(bare):.2f}")
        longest.append(max(own))
    lines = [
        ["`dedup_by_id` / the same passes without de-duplication", *ratios],
        ["longest micro-batch, ms", *longest],
    ]
    return rows(["live IDs", *titles], lines)


def _throughput(
    head: str, columns: dict[str, dict[str, list[int]]], base: str, warm_up: int
) -> str:
    """Each contender's time, and its throughput against `base`, in each of the columns."""
    cells: dict[str, list[str]] = {}
    for times in columns.values():
        middle = {name: median(each[warm_up:]) for name, each in times.items()}
        for name, ms in middle.items():
            cells.setdefault(name, []).append(f"{ms:.0f} ({middle[base] / ms:.2f}x)")
    return rows([head, *columns], ([name, *line] for name, line in cells.items()))


def kafka() -> str:
    """Into Kafka, and from Kafka to Kafka."""
    found, ends = result("kafka"), result("kafka-end-to-end")
    sizes = {
        "200,000 of 100 B": found["narrow_ms"],
        "100,000 of 1 kB": found["wide_ms"],
        "1,000 of 100 B": found["small_ms"],
    }
    into = _throughput("ms, records into Kafka", sizes, "Spark's own sink", found["warm_up"])
    base = "dropDuplicatesWithinWatermark -> Spark's own sink"
    between = {"200,000 of 100 B": ends["batch_ms"]}
    return f"{into}\n\n{_throughput('ms, Kafka to Kafka', between, base, ends['warm_up'])}"


def postgres() -> str:
    """Into PostgreSQL, appended and by key."""
    found = result("postgres")
    return "\n\n".join(
        _throughput("ms, 1 M rows of 5 columns", {mode: found[f"{mode}_ms"]}, "bare COPY", 2)
        for mode in ("append", "upsert")
    )


def files() -> str:
    """Into folders, against Spark's own sink."""
    found = result("files")
    middle = {name: median(each[found["warm_up"] :]) for name, each in found["batch_ms"].items()}
    lines = []
    for kind in ("parquet", "json", "csv"):
        spark, ours = middle[f"{kind}, Spark"], middle[f"{kind}, dedup_files"]
        lines.append([kind, f"{spark:.0f}", f"{ours:.0f} ({spark / ours:.2f}x the throughput)"])
    return rows(["ms per micro-batch", "Spark's own sink", "`dedup_files`"], lines)


def rescaled() -> str:
    """Queries that got other partitions, against queries born with them."""
    found, lines = result("partitions"), []
    for number, each in found["rescaled"].items():
        born, changed, ids, count = change(number, each, found["warm_up"])
        ratio = f"{changed:.0f} ({changed / born:.2f}x)"
        name = f"{found['born']} -> {number}"
        lines.append([name, f"{born:.0f}", ratio, f"{ids:.2f}", f"{count:.2f}"])
    head = ["partitions", "born with the new number, ms", "rescaled, ms"]
    return rows([*head, "fullest / average: IDs", "shards"], lines)


def rebuilt() -> str:
    """What rebuilding a query takes, and what the new query costs."""
    found, lines = result("rebuild"), []
    for each in found["sizes"].values():
        took, new, size = ratios(each, found["warm_up"])
        seconds, peak = each["rebuilt"]["took_s"], each["rebuilt"]["peak_bytes"] / 1e6
        live = f"{each['live_ids'] / 1e6:.1f} M"
        lines.append(
            [live, f"{seconds:.1f} s ({took:.2f})", f"{peak:.0f} MB", f"{new:.2f}", f"{size:.2f}"]
        )
    head = ["live IDs", "rebuilding (against letting them in)", "peak memory of Python"]
    return rows([*head, "micro-batch against born with 32", "bytes against before"], lines)


def bootstrapped() -> str:
    """What starting a query from history takes."""
    lines = []
    for each in result("bootstrap")["sizes"].values():
        took, memory = of_operator(each)
        seconds, peak = each["took_s"], each["peak_bytes"] / 1e6
        rows_read = f"{each['rows'] / 1e6:.0f} M"
        lines.append([rows_read, f"{seconds:.1f} s ({took:.2f})", f"{peak:.0f} MB ({memory:.2f})"])
    head = ["rows of history", "`bootstrap` (against the operator over the same rows)"]
    return rows([*head, "peak memory of Python workers (against the operator)"], lines)


def shards() -> str:
    """What more shards than partitions cost."""
    found = result("partitions")
    costs = {name: cost(each, found["warm_up"]) for name, each in found["shards"].items()}
    first, *_ = costs.values()
    kinds = ("time of a micro-batch", "largest Spark state", "peak memory of Python workers")
    lines = (
        [kind, *(f"{own[n] / first[n]:.2f}" for own in costs.values())]
        for n, kind in enumerate(kinds)
    )
    return rows([f"shards on {found['born']} partitions", *costs], lines)


def sizing() -> str:
    """Filters alone, with the default number of buckets: ours / pybloom-live / its scalable one."""
    settings: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for cell in result("sizing")["cells"]:
        if cell["buckets"] != _BUCKETS:
            continue
        settings.setdefault((cell["ids"], cell["fpr"]), []).append(cell)
    lines = []
    for (count, fpr), cells in settings.items():
        columns: list[list[str]] = [[], [], [], []]
        for cell in cells:
            low, high = (edge / fpr for edge in interval(cell["wrong"], cell["asked"]))
            figures = [cell["bits_per_id"], cell["add_ns"], cell["probe_ns"]]
            texts = [f"{figures[0]:.1f}", *(f"{each:.0f}" for each in figures[1:])]
            for column, text in zip(columns, [*texts, f"{low:.2f}-{high:.2f}"], strict=True):
                column.append(text)
        setting = f"{count / 1e6:g} M, {fpr:.2%}"
        lines.append([setting, *(" / ".join(column) for column in columns)])
    head = ["IDs, rate", "bits per ID", "ns per add", "ns per probe", "measured / requested rate"]
    return rows(head, lines)


TABLES: dict[str, Callable[[], str]] = {
    "pipelines": pipelines,
    "cluster": cluster,
    "runs": lambda: _runs("runs"),
    "runs-wide": lambda: _runs("runs-wide"),
    "runs-3m": lambda: _runs("runs-3m"),
    "runs-text": lambda: _runs("runs-csv", "runs-json"),
    "starts": starts,
    "scale": scale,
    "kafka": kafka,
    "postgres": postgres,
    "files": files,
    "sizing": sizing,
    "rescaled": rescaled,
    "shards": shards,
    "rebuilt": rebuilt,
    "bootstrapped": bootstrapped,
}
_TABLE = re.compile(r"(<!-- table ([\w-]+) -->\n)((?:\n?\|[^\n]*\n)*)")


def filled(page: str) -> str:
    """Return a page with the tables that the results give."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text()))
