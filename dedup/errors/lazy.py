"""Import the public names of a package on first use, and list them by ``dir``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(
    package: str, public: Sequence[str], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return functions ``__getattr__`` and ``__dir__`` for the package with the name `package`.

    They import a public name when somebody first uses it, so that importing the package does not
    import Spark. `homes` maps each module to its public names, separated by blanks. A module
    without names is itself public.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    modules = {home.rpartition(".")[2]: home for home, names in homes.items() if not names}

    def load(name: str) -> Any:
        if name in modules:
            return import_module(modules[name])
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(home_of[name]), name)
        except ModuleNotFoundError as error:
            if error.name and error.name.partition(".")[0] == "pyspark":
                from dedup.errors import MissingExtraError

                raise MissingExtraError("spark", f"{package}.{name}") from None
            raise

    return load, lambda: list(public)
