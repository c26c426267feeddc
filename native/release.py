"""Build the sdist, and wheels for Linux on x86_64 and aarch64, into dist/, and check them.

`make wheel` runs this. ziglang compiles the C code for both machines, once against the C library of
manylinux_2_17 and once against musl. A wheel is built from the sdist, so the sdist is complete. The
build of the extension is optional in an installation from source, so a wheel without it would go
unnoticed: each wheel must have exactly the package's files and an extension for its machine.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DIST = REPOSITORY / "dist"
EXTENSION = "dedup/kernel/_native.abi3.so"
#: Machines with the numbers that their ELF files have, in two bytes at offset 18.
MACHINES = {"x86_64": 62, "aarch64": 183}
#: For each kind of wheel, the C library as zig names it.
LIBRARIES = {"manylinux_2_17": "gnu.2.17", "musllinux_1_2": "musl"}
#: Endings of the files that a wheel carries, as in pyproject.toml.
ENDINGS = (".py", ".pyi", ".typed", ".md", ".json", ".yml", ".html", ".ipynb")


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="dedup-release-") as scratch:
        # A clone has no files that Git ignores, such as an extension of this machine.
        clone = Path(scratch, "clone")
        run("git", "clone", "--quiet", str(REPOSITORY), str(clone))
        python("build", "--sdist", "--outdir", str(DIST), str(clone))
        (sdist,) = DIST.glob("*.tar.gz")
        shutil.unpack_archive(sdist, scratch)
        source = Path(scratch, sdist.name.removesuffix(".tar.gz"))
        for kind, (machine, number) in itertools.product(LIBRARIES, MACHINES.items()):
            check_members(build_wheel(source, kind, machine), number)
    files = [str(path) for path in sorted(DIST.iterdir())]
    wheels = [name for name in files if name.endswith(".whl")]
    python("twine", "check", "--strict", *files)
    python("abi3audit", "--strict", *wheels)
    for wheel in wheels:
        if "manylinux" in wheel:  # for musl, auditwheel reads the libc of this machine
            python("auditwheel", "show", wheel)
    print(*files, sep="\n")


def build_wheel(source: Path, kind: str, machine: str) -> Path:
    shutil.rmtree(source / "build", ignore_errors=True)
    compiler = f"{sys.executable} -m ziglang cc -target {machine}-linux-{LIBRARIES[kind]}"
    platform = f"{kind}_{machine}"
    settings = {
        "CC": compiler, "LDSHARED": f"{compiler} -shared", "CFLAGS": "-O2 -s", "LDFLAGS": "",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
    }  # fmt: skip
    tag = f"--config-setting=--build-option=--plat-name={platform}"
    arguments = ("--wheel", tag, "--outdir", str(DIST), str(source))
    python("build", *arguments, environment=os.environ | settings)
    (wheel,) = DIST.glob(f"*-{platform}.whl")
    return wheel


def check_members(wheel: Path, machine: int) -> None:
    """Stop unless the wheel has the package's files, and an extension for the machine."""
    tracked = run("git", "ls-files", "dedup", cwd=REPOSITORY).split()
    wanted = {name for name in tracked if name.endswith(ENDINGS)} | {EXTENSION}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        if found != wanted:
            sys.exit(f"{wheel}: missing {wanted - found}, not wanted {found - wanted}")
        built_for = int.from_bytes(archive.read(EXTENSION)[18:20], "little")
    if built_for != machine:
        sys.exit(f"{wheel}: {EXTENSION} is for machine {built_for} instead of {machine}")


def python(module: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(command)} has failed.")


def run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, cwd=cwd).stdout


if __name__ == "__main__":
    main()
