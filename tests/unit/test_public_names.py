"""What the packages show of themselves: public names, operators as calls, errors in a notebook."""

from __future__ import annotations

import ast
import pkgutil
import re
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import pytest

import dedup
from dedup import dedup_by_id, dedup_by_sequence
from dedup.errors import ConfigError
from tests.support.processes import python

PACKAGE = Path(dedup.__file__).parent
REPOSITORY = PACKAGE.parent


PACKAGES = {
    "dedup": "spark",
    "dedup.sinks": "sinks",
    "dedup.sources.kafka": "sources/kafka",
    "dedup.tools": "tools",
}
#: A name with dots that begins with this package's, as code writes it.
_DOTTED = re.compile(r"(?<![\w./-])dedup(?:\.[A-Za-z_]\w*)+(?![\w=/-]|\.[\w*{<])")
#: Names of columns, properties of tables and threads, not of modules.
_OTHER = {
    "dedup.content", "dedup.goes_on", "dedup.kafka.client", "dedup.marker",
    "dedup.place_in_kafka", "dedup.rows", "dedup.sink", "dedup.verdicts",
}  # fmt: skip


@pytest.mark.parametrize("package", [*PACKAGES, "dedup.sources.record_id", "dedup.testing"])
def test_each_public_name_is_in_the_list_of_its_package(package: str) -> None:
    module = import_module(package)
    assert dir(module) == module.__all__
    assert set(module.__all__) >= set(module._HOMES)
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name)
    with pytest.raises(AttributeError, match=rf"^module '{package}' has no attribute 'x'$"):
        module.x  # noqa: B018


@pytest.mark.parametrize("package", [*PACKAGES, "dedup.sources.record_id"])
def test_type_checkers_read_the_same_names_from_the_same_modules(package: str) -> None:
    module = import_module(package)
    in_stub = {}
    for node in ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            assert [name.asname for name in node.names] == [name.name for name in node.names]
            in_stub.update({name.name: str(node.module) for name in node.names})
    as_modules = {name: f"{home}.{name}" for name, home in in_stub.items()}
    assert in_stub.keys() == module._HOMES.keys()
    for name, home in module._HOMES.items():
        assert home in (in_stub[name], as_modules[name])
    assert set(module.__all__) - set(in_stub) <= {"__version__"}


@pytest.mark.parametrize("package", [*PACKAGES, "dedup.sources.record_id"])
def test_no_module_hides_a_public_name(package: str) -> None:
    """``from package import name`` would return the module as soon as anything has imported it."""
    module = import_module(package)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    modules -= {name for name, home in module._HOMES.items() if home == f"{package}.{name}"}
    assert not modules & set(module.__all__)


@pytest.mark.parametrize(("package", "folder"), PACKAGES.items())
def test_a_page_begins_with_the_public_names(package: str, folder: str) -> None:
    page = (PACKAGE / folder / "README.md").read_text()
    table = page[page.index(f"| name in `{package}` |") :].split("\n\n")[0]
    assert page.index(table) < 200
    names = [
        name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(names) == sorted({*import_module(package).__all__} - {"__version__"})


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_room_imports_neither_spark_nor_another_room(package: str) -> None:
    """Every task imports rooms."""
    code = f"import sys, {package}; print(*sorted(sys.modules))"
    loaded = python("-c", code).stdout.split()
    assert package in loaded
    assert not {"pyspark", "pyarrow", "numpy", "pandas", "rocksdict"} & set(loaded)
    own = {".".join(package.split(".")[:n]) for n in (1, 2, 3)}
    ours = {name for name in loaded if name.split(".")[0] == "dedup"} - own
    assert ours == {"dedup.core", "dedup.core.version"} | {
        f"dedup.errors{module}" for module in ("", ".cause", ".lazy", ".redaction")
    }


def test_every_name_of_the_package_that_a_text_shows_exists() -> None:
    texts = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md"), REPOSITORY / "README.md"]
    texts += [*(REPOSITORY / "tests").rglob("*.md"), *(REPOSITORY / "benchmarks").rglob("*.md")]
    shown = {
        name: path
        for path in texts
        if "decisions" not in path.parts
        for name in _DOTTED.findall(path.read_text())
    }
    assert {name: path for name, path in shown.items() if not _exists(name)}.keys() == _OTHER


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_an_operator_is_shown_as_the_call_that_makes_it() -> None:
    assert repr(dedup_by_id("id", horizon="7 days")) == "dedup_by_id(id='id', horizon='7 days')"
    given = dedup_by_id(["a", "b"], horizon=timedelta(days=7), timestamp="t", late="drop",
                        fpr=0.01, catalog="s3://KEY:SECRET@bucket/orders",
                        source_partition=["topic", "partition"])  # fmt: skip
    assert repr(given) == (
        "dedup_by_id(id=('a', 'b'), horizon=datetime.timedelta(days=7), "
        "catalog='s3://bucket/orders', timestamp='t', source_partition=('topic', 'partition'), "
        "late='drop')"
    )
    numbered = dedup_by_sequence("device", "n", expire_after="7 days", gaps="drop")
    assert repr(numbered) == (
        "dedup_by_sequence(producer='device', sequence='n', expire_after='7 days', gaps='drop')"
    )


def test_a_notebook_shows_the_callers_lines_of_an_error_and_its_text() -> None:
    """IPython asks an exception for `_render_traceback_` before it makes a traceback itself."""
    with pytest.raises(ConfigError) as caught:
        dedup_by_id("id", horizon="7 dayz")
    first, *_, last = caught.value._render_traceback_()
    assert 'dedup_by_id("id", horizon="7 dayz")' in first
    assert last.startswith("ConfigError: horizon='7 dayz' is not a duration")
    assert len("\n".join(caught.value._render_traceback_()).splitlines()) < 8
    with_topic = ConfigError("text", remedy="clock")
    assert with_topic._render_traceback_() == [
        "ConfigError: text\nRemedies: dedup remedies clock"
    ]  # fmt: skip
