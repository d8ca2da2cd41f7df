"""`make lock`: writes requirements.lock, the versions and hashes of every package that CI installs.

pip resolves the extra `dev` for this interpreter and platform, and its report names the files. Only
names, versions and hashes are written: where the files come from is a matter of pip's settings.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
PYTHON = ".".join(map(str, sys.version_info[:2]))
HEADER = f"""\
# Versions and hashes of what CI installs on Linux (x86-64) with Python {PYTHON}.
# Written by `make lock`; run it after every change of dependencies in pyproject.toml.
"""


def demanded(extra: str = "dev") -> list[Requirement]:
    """The requirements of the package with this extra, without references to itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = list(project["dependencies"])
    extras, known = [extra], set()
    while extras:
        name = extras.pop()
        if name not in known:
            known.add(name)
            for text in project["optional-dependencies"][name]:
                requirement = Requirement(text)
                if requirement.name == project["name"]:
                    extras += requirement.extras
                else:
                    texts.append(text)
    return [Requirement(text) for text in texts]


def locked() -> dict[str, str]:
    """Versions by canonical name."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    pins = [line.split(" ")[0].split("==") for line in lines if "==" in line]
    return {canonicalize_name(name): version for name, version in pins}


def write() -> None:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", report,
             *map(str, demanded())],
            check=True,
        )  # fmt: skip
        packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    lines = []
    for package in packages:
        name = canonicalize_name(package["metadata"]["name"])
        hashes = package["download_info"]["archive_info"]["hashes"]
        pin = f"{name}=={package['metadata']['version']}"
        lines.append(f"{pin} --hash=sha256:{hashes['sha256']}")
    LOCK.write_text(HEADER + "\n".join(sorted(lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
