"""Tests Prometheus' rules with promtool. Each alert must have a test that raises it and one that does not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).resolve().parent.parent.parent / "deploy" / "prometheus"


def promtool(*arguments: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install -y prometheus")
    done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_configuration_are_valid() -> None:
    promtool("check", "rules", "rules.yml")
    promtool("check", "config", "prometheus.yml")


def test_rules_pass_promtools_tests() -> None:
    promtool("test", "rules", "rules_test.yml")


def test_each_rule_has_a_test() -> None:
    rules = [rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]]
    tests = yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    text = (FOLDER / "rules_test.yml").read_text()
    used = " ".join(rule["expr"] for rule in rules)
    for rule in rules:
        if "record" in rule:
            assert rule["record"] in text or rule["record"] in used, f"{rule['record']} has no test"
