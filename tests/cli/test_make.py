"""The Makefile and the pinned versions."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"[a-z0-9-]+==[0-9][\w.!+-]*( ; .+)?")


def test_make_lists_every_target():
    [targets] = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, check=True).stdout
    for target in targets.split():
        assert re.search(rf"make {target} +\w", listed), target


def test_constraints_are_pins_and_nothing_else():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(PIN.fullmatch(pin) for pin in pins)
    pinned = {pin.partition("==")[0] for pin in pins}
    project = (ROOT / "pyproject.toml").read_text()
    tables = re.findall(
        r"^(?:requires|dependencies|test|dev|transformers) = \[(.*?)\]$", project, re.MULTILINE | re.DOTALL
    )
    wanted = {name.replace("_", "-") for table in tables for name in re.findall(r'"([\w-]+)[=<>]', table)}
    assert {"numpy", "pytest", "ruff", "torch", "nanobind"} <= wanted <= pinned


@pytest.mark.parametrize("name", ["Makefile", ".ci/run", "constraints.txt", ".pre-commit-config.yaml"])
def test_no_address_is_written_down(name):
    assert "://" not in (ROOT / name).read_text()
