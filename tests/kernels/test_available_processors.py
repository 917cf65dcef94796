"""How many processors may be used: quotas of control groups, in trees of files as systems lay them out."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from test_threads import run_python

from slipstream.kernels.processors import available_processors

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
OTHERS = [
    "23 1 8:1 / / rw - ext4 /dev/root rw",
    "32 31 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset",
    "40 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,name=systemd",
]
TOP2, TOP1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"

System = Callable[..., int]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    """The processors that are available on a machine of 16 with this /proc and these files."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)

    def system(groups: list[str], mounts: list[str], files: dict[str, str]) -> int:
        files = {"proc/self/cgroup": "\n".join(groups), "proc/self/mountinfo": "\n".join([*OTHERS, *mounts]), **files}
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return available_processors(tmp_path)

    return system


def v2(group: str, quota: str) -> dict[str, str]:
    return {f"{TOP2}/{group}/cpu.max": quota}


def v1(group: str, quota: int, period: int = 100_000) -> dict[str, str]:
    return {
        f"{TOP1}/{group}/cpu.cfs_quota_us": str(quota),
        f"{TOP1}/{group}/cpu.cfs_period_us": str(period),
    }


def test_no_quota(system: System, tmp_path: Path) -> None:
    assert available_processors(tmp_path) == 16  # nor control groups
    assert system(["0::/user.slice/mine"], [V2], v2("user.slice/mine", "max 100000")) == 16
    assert system(["3:cpu,cpuacct:/mine"], [V1], v1("mine", -1)) == 16


@pytest.mark.parametrize("quota", [(10, 1), (50, 1), (100, 1), (149, 1), (150, 2), (200, 2), (340, 3), (5000, 16)])
def test_a_quota_is_rounded_and_at_least_one(system: System, quota: tuple[int, int]) -> None:
    percent, threads = quota
    assert system(["0::/a"], [V2], v2("a", f"{percent * 1000} 100000")) == threads
    assert system(["3:cpuacct,cpu:/a"], [V1], v1("a", percent * 500, 50_000)) == threads


def test_the_smallest_quota_on_the_way_up_counts(system: System) -> None:
    """systemd's CPUQuota is set on a slice, Kubernetes' limit on a pod: the process is in a group below."""
    groups = ["0::/kubepods.slice/pod1/box"]
    files = v2("kubepods.slice/pod1/box", "max 100000") | v2("kubepods.slice/pod1", "300000 100000")
    assert system(groups, [V2], files) == 3
    assert system(groups, [V2], files | v2("kubepods.slice", "200000 100000")) == 2
    assert system(groups, [V2], v2("kubepods.slice/pod2", "100000 100000")) == 2  # another's
    assert system(groups, [V2], v2("kubepods.slice/pod1/box", "100000 100000")) == 1


def test_version_1_nested(system: System) -> None:
    groups = ["9:cpuset:/elsewhere", "3:cpu,cpuacct:/system.slice/mine", "1:name=systemd:/elsewhere"]
    files = v1("", -1) | v1("system.slice", 400_000) | v1("system.slice/mine", 800_000)
    assert system(groups, [V1], files) == 4
    assert system(groups, [V1], v1("elsewhere", 100_000)) == 4


def test_both_versions_at_once(system: System) -> None:
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    groups = ["3:cpu,cpuacct:/a", "0::/b"]
    files = v1("a", 300_000) | {"sys/fs/cgroup/unified/b/cpu.pressure": ""}
    assert system(groups, [V1, unified], files) == 3
    assert system(groups, [V1, unified], {"sys/fs/cgroup/unified/b/cpu.max": "200000 100000"}) == 2


def test_a_container_that_sees_only_its_own_group(system: System) -> None:
    """Without a namespace of its own, the path is the host's, and the top of the mount is the process's group."""
    mounted = V2.replace(" / /sys", " /docker/abc /sys")
    assert system(["0::/docker/abc"], [mounted], v2("", "200000 100000")) == 2
    assert system(["0::/docker/abc/inner"], [mounted], v2("inner", "100000 100000")) == 1


def test_a_container_with_a_namespace(system: System) -> None:
    assert system(["0::/"], [V2], v2("", "200000 100000")) == 2


@pytest.mark.parametrize("path", ["/../..", "/../sibling", "/docker/abc"])
def test_a_path_that_is_not_mounted(system: System, path: str) -> None:
    """Such as that of a process outside its namespace's top: what is mounted is all that there is to see."""
    mounted = V2.replace(" / /sys", " /other /sys")
    assert system([f"0::{path}"], [mounted], v2("", "200000 100000")) == 2
    outside = V2.replace(" / /sys", " /.. /sys")
    assert system([f"0::{path}"], [outside], v2("", "200000 100000")) == 2


def test_a_mount_whose_place_has_a_space(system: System) -> None:
    mounted = V2.replace("/sys/fs/cgroup", "/my\\040groups")
    assert system(["0::/a"], [mounted], {"my groups/a/cpu.max": "200000 100000"}) == 2


@pytest.mark.parametrize(
    "content",
    ["", "max", "200000", "two hundred", "200000 0", "0 100000", "-5 100000", "1 2 3", "nan nan", "inf 1"],
)
def test_files_that_make_no_sense_are_passed_over(system: System, content: str) -> None:
    assert system(["0::/a", "nonsense", "::", ""], [V2, "nonsense", "1 2 3 - cgroup2", ""], v2("a", content)) == 16


def test_systems_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for count, threads in ((8, 8), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert available_processors(tmp_path) == threads


def test_the_kernels_begin_with_as_many_threads() -> None:
    assert int(run_python("from slipstream import kernels; print(kernels.threads())").stdout) == available_processors()
