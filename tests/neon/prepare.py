"""python prepare.py: makes build/neon/usr/bin/python, which runs Slipstream for 64-bit ARM under emulation.

Debian's Python for that processor is unpacked there, with the packages that Slipstream and its tests need. Then
Slipstream is compiled for it with a cross compiler. Nothing is installed outside build/.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
ROOT = PROJECT / "build" / "neon"
PYTHON = ROOT / "usr" / "bin" / "python"
SITE = ROOT / "usr" / "lib" / "python3" / "dist-packages"
DOWNLOADS = PROJECT / "build" / "neon-downloads"
NEEDED = {"qemu-aarch64": "qemu-user", "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "apt-get": "apt"}
"""Commands, and the Debian packages that have them."""

START = f"""#!/bin/sh
exec qemu-aarch64 -cpu max -L '{ROOT}' -0 "$0" '{ROOT}/usr/bin/python3' "$@"
"""
"""Python takes the name under which it was started for its own, so that what it starts is emulated too."""


def main() -> None:
    missing = sorted(package for command, package in NEEDED.items() if not shutil.which(command))
    if missing:
        sys.exit(f"Emulating ARM needs some packages of Debian's: apt-get install {' '.join(missing)}")
    if not PYTHON.exists():
        print("Unpacking Python for ARM …", flush=True)
        unpack_python()
    print("Installing what Slipstream needs on ARM …", flush=True)
    install_packages()
    print("Compiling Slipstream for ARM …", flush=True)
    install_slipstream()


def unpack_python() -> None:
    """Debian's packages are only unpacked, as a system of its own that nothing here knows of."""
    shutil.rmtree(ROOT, ignore_errors=True)
    (DOWNLOADS / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (DOWNLOADS / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (DOWNLOADS / "installed").write_text("")
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
        "Dir::Cache": DOWNLOADS,
        "Dir::State": DOWNLOADS,
        "Dir::State::status": DOWNLOADS / "installed",
    }
    apt = ["apt-get", "-qq", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    subprocess.run([*apt, "update"], check=True)
    apt += ["install", "--yes", "--no-install-recommends", "--download-only"]
    subprocess.run([*apt, "python3-dev", "libstdc++6"], check=True)
    for package in sorted((DOWNLOADS / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", package, ROOT], check=True)
    PYTHON.write_text(START)
    PYTHON.chmod(0o755)


def install_packages() -> None:
    """The pinned versions, as wheels for ARM. (llguidance has none for an older glibc than 2.31.)"""
    command = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--no-python-downloads"]
    command += ["--target", SITE, "--python-platform", "aarch64-manylinux_2_31", "--python-version", version()]
    command += ["--only-binary", ":all:", "--constraint", "constraints.txt"]
    subprocess.run([*command, "--requirement", "pyproject.toml", "--extra", "test", "scikit-build-core", "nanobind"],
                   cwd=PROJECT, check=True)  # fmt: skip


def version() -> str:
    """Of the Python for ARM, as in 3.11."""
    return os.readlink(ROOT / "usr" / "bin" / "python3").removeprefix("python")


def install_slipstream() -> None:
    """The build runs in the emulated Python; CMake, Ninja and the cross compiler, which it starts, run without."""
    environment = os.environ | {
        "CMAKE_ARGS": "-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "CXX": "aarch64-linux-gnu-g++",
        "CXXFLAGS": f"-idirafter {ROOT}/usr/include",  # Debian's Python.h includes files from another folder
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    code = f"from scikit_build_core.build import build_wheel; print(build_wheel({str(ROOT)!r}))"
    built = subprocess.run(
        [PYTHON, "-c", code], cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if built.returncode:
        sys.exit(built.stdout)
    shutil.rmtree(SITE / "slipstream", ignore_errors=True)
    with zipfile.ZipFile(ROOT / built.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(SITE)


if __name__ == "__main__":
    main()
