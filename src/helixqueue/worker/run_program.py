"""The command of a run as a handler: inputs, secrets, /pfs and environment of one datum."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helixqueue.errors import GiveUp, Refused, Unavailable
from helixqueue.identity.strictjson import loads
from helixqueue.runs.expansion import Input
from helixqueue.runs.fetch import fetch
from helixqueue.runs.secret_file import Secrets, resolve
from helixqueue.runs.spec import GIB, PFS_LABEL, load_spec
from helixqueue.worker import private_mounts
from helixqueue.worker.outcomes import AttemptFailure, FailureClass
from helixqueue.worker.program import (
    Execution,
    batch_variables,
    log_directory,
    program_failure,
    read_result,
    write_payload,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helixqueue.runs.spec import RunSpec
    from helixqueue.schemas import Schema
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handle import WorkerHandle

LOG = logging.getLogger("helixqueue.worker")
# What a command gets of the worker's environment; everything else may be a secret.
ALLOWED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM",
    "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)  # fmt: skip
RESULT_BYTES = 3_000  # of head and tail of each stream, in the result of a command that succeeds
SPECS_MAX = 64  # kept in memory


@dataclass
class RunProgram:
    """Executes batches of runs; `read_text` returns the name and spec of a run."""

    read_text: Callable[[int], tuple[str, str]]
    secrets: Path | None = None
    logs: Path | None = None
    _specs: OrderedDict[int, tuple[str, RunSpec]] = field(default_factory=OrderedDict)

    async def run(self, attempt: Attempt, schema: Schema | None, handle: WorkerHandle) -> Any:  # noqa: ARG002
        name, spec = await self._spec(attempt)
        home = Path(tempfile.mkdtemp(prefix="helix-run-"))
        try:
            datum = _Datum(attempt, name, spec, home, handle.worker)
            secrets = _resolved(spec, self.secrets)
            async with asyncio.timeout(spec.datum_timeout_seconds):
                await datum.fetch()
                return await self._execute(datum, secrets, handle)
        except TimeoutError:
            raise AttemptFailure(
                FailureClass.TIMEOUT, f"the datum took longer than {spec.datum_timeout}"
            ) from None
        finally:
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)

    async def _spec(self, attempt: Attempt) -> tuple[str, RunSpec]:
        run = attempt.row.run
        if run is None:
            raise GiveUp("expected a batch of a run: this worker executes runs (--runs)")
        if run not in self._specs:
            name, text = await asyncio.to_thread(self.read_text, run)
            self._specs[run] = name, load_spec(text)
            while len(self._specs) > SPECS_MAX:
                self._specs.popitem(last=False)
        return self._specs[run]

    async def _execute(self, datum: _Datum, secrets: Secrets, handle: WorkerHandle) -> Any:
        logs = log_directory(self.logs, datum.attempt, datum.home)
        execution, descriptor = datum.execution(secrets, logs)
        try:
            code, streams = await execution.run(datum.attempt, handle)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        if code != 0:
            failure = program_failure(code, streams)
            detail = secrets.mask(str(failure))
            raise AttemptFailure(failure.failure, detail, permanent=failure.permanent)
        if (result := read_result(datum.result)) is not None:
            return result
        text = "\n".join(
            part for part in (stream.excerpt(RESULT_BYTES) for stream in streams) if part
        )
        return {"log": secrets.mask(text)} if text else None


@dataclass
class _Datum:
    """One attempt and its directory: `pfs` with the inputs, `scratch`, and the files of ids."""

    attempt: Attempt
    run: str
    spec: RunSpec
    home: Path
    worker: str

    @property
    def result(self) -> Path:
        return self.home / "result.json"

    async def fetch(self) -> None:
        payload: Any = loads(self.attempt.row.payload or "null")
        try:
            inputs = [Input(each["uri"], each["path"]) for each in payload["inputs"]]
        except (TypeError, KeyError):
            raise GiveUp("expected the payload of a datum, with its inputs") from None
        try:
            await fetch(inputs, self.home / "pfs")
        except (Refused, Unavailable, OSError) as error:
            raise AttemptFailure(FailureClass.INPUTS, str(error)) from error

    def execution(self, secrets: Secrets, logs: Path) -> tuple[Execution, int | None]:
        transform = self.spec.transform
        own = {"/pfs": self.home / "pfs", "/scratch": self.home / "scratch"}
        own["/scratch"].mkdir()
        own["/pfs/out"] = self.attempt.make_output_directory()
        command, directory, descriptor = list(transform.cmd), transform.working_dir, None
        shown = {path: str(place) for path, place in own.items()}
        if self.spec.pfs:
            (own["/pfs"] / "out").mkdir()
            root = self.home / "root"
            root.mkdir()
            shown = {path: path for path in own}
            command, descriptor = private_mounts.private_command(
                command, root=root, binds=own, files=secrets.files, directory=directory
            )
            directory = None
        elif secrets.files:
            raise GiveUp("a secret with mount_path needs /pfs: the run says that it has none")
        stdin = None
        if transform.stdin is not None:
            stdin = self.home / "stdin"
            stdin.write_text("".join(f"{line}\n" for line in transform.stdin), encoding="utf-8")
        execution = Execution(
            command,
            self._environment(secrets, shown),
            logs,
            stdin=stdin,
            working_directory=directory,
            descriptors=() if descriptor is None else (descriptor,),
        )
        return execution, descriptor

    def _environment(self, secrets: Secrets, shown: dict[str, str]) -> dict[str, str]:
        row = self.attempt.row
        allowed = {
            name: value for name, value in os.environ.items()
            if name in ALLOWED or name.startswith("LC_")
        }  # fmt: skip
        payload = write_payload(row, self.home)
        return {
            **allowed,
            **self.spec.transform.env,
            **secrets.variables,
            **batch_variables(row, payload, self.result),
            "HELIX_RUN": self.run,
            "HELIX_IN": shown["/pfs"],
            "HELIX_OUT": shown["/pfs/out"],
            "HELIX_SCRATCH": shown["/scratch"],
            "FALCONERI_POD_NAME": self.worker,
            "FALCONERI_NODE_NAME": socket.gethostname(),
        }


def _resolved(spec: RunSpec, path: Path | None) -> Secrets:
    try:
        return resolve(spec.transform.secrets, path)
    except Refused as error:
        raise AttemptFailure(FailureClass.SYSTEM, str(error)) from None


def offered(free: Mapping[str, Any] | None, slots: int) -> dict[str, Any]:
    """The resources of a slot, if need be its share of this machine, and whether it has /pfs."""
    if free is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        free = {"cpu_cores": (os.cpu_count() or 1) / slots, "ram_gb": memory / GIB / slots}
    if (problem := private_mounts.problem()) is not None:
        LOG.warning("this machine cannot show /pfs, so runs that need it wait: %s", problem)
        return dict(free)
    return {**free, "labels": {**free.get("labels", {}), PFS_LABEL: "yes"}}
