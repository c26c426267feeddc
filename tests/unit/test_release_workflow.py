"""The workflow that builds and publishes a release. It cannot run here, so this reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / ".github/workflows/release.yml").read_text()
WORKFLOW: dict[str, Any] = yaml.safe_load(TEXT)
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_every_action_is_pinned_by_the_hash_of_a_commit() -> None:
    used = re.findall(r"uses: (\S+)(.*)", TEXT)
    assert len(used) == sum("uses" in step for step in STEPS) > 5
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), comment


def test_only_the_publication_may_write_and_it_waits_for_all_other_jobs() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    rights = {
        name: job["permissions"] for name, job in WORKFLOW["jobs"].items() if "permissions" in job
    }
    assert rights == {"publish": {"id-token": "write"}}
    publish = WORKFLOW["jobs"]["publish"]
    assert {*publish["needs"]} == {*WORKFLOW["jobs"]} - {"publish"}
    assert publish["environment"] == "pypi"


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^\.PHONY: (\S+)", (REPOSITORY / "Makefile").read_text(), re.M))
    targets |= {"test-3.5", "test-4.0"}
    versions = WORKFLOW["jobs"]["older"]["strategy"]["matrix"]["pyspark"]
    named = {
        name for step in STEPS for name in re.findall(r"make ([\w-]+)(?= |$)", step.get("run", ""))
    }
    assert named <= targets
    assert "wheel" in named
    assert {f"test-{version}" for version in versions} <= targets
