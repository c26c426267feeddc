"""The alert rules, as Prometheus's own tool evaluates them over made-up queries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import dedup.tools.watch

RULES = Path(dedup.tools.watch.__file__).with_name("alerts.yml")
TESTS = Path(__file__).with_name("alert_rules_test.yml")


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="needs promtool (Debian and Ubuntu: apt install prometheus)",
)
@pytest.mark.parametrize("what", [["check", RULES], ["test", TESTS]])
def test_promtool_has_no_complaint(what: list[str | Path]) -> None:
    action, path = what
    done = subprocess.run(["promtool", action, "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_made_to_fire() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    asked = TESTS.read_text()
    for rule in group["rules"]:
        assert f'alertname="{rule["alert"]}"' in asked
