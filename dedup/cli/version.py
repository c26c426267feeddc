"""Which versions run, and on which path the kernel is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_RESTS_ON = ("pyspark", "pandas", "pyarrow", "rocksdict", "numpy")


def version_lines() -> list[str]:
    """Return a line for this package and one for each it rests on."""
    from dedup import kernel

    lines = [f"dedup {_of('rolling-dedup')}", f"kernel {kernel.PATH}"]
    return lines + [f"{name} {_of(name)}" for name in _RESTS_ON]


def _of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
