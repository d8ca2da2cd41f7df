"""The file that describes a run: the fields of Falconeri's pipelines, and documented extensions.

A spec is JSON or YAML. Unknown names are refused, with the place and the nearest known name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from helixqueue.errors import InvalidPayload, Refused
from helixqueue.identity import canonical_text, loads
from helixqueue.records.parameter import NAME_PATTERN
from helixqueue.runs.duration import Duration, seconds
from helixqueue.yaml_document import InvalidYaml, Loc, read_document

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_QUEUE: Final = "runs"
DEFAULT_JOB_TIMEOUT: Final = "3d"
PFS_LABEL: Final = "helix_pfs"  # of workers that can show /pfs
GIB: Final = 1024**3
_MEMORY_UNITS: Final = {
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)},
    **{unit: 1000**power for power, unit in enumerate("kMGTPE", 1)},
    "m": 1e-3,
    "": 1,
}
_MEMORY: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([A-Za-z]{0,2})")
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\x00-\x1f\x7f?#]*")
_U32: Final = 2**32 - 1
_I32: Final = 2**31 - 1


class InvalidRun(Refused):
    """The run cannot be started; the message lists every problem."""


class InvalidSpec(InvalidYaml, InvalidRun):
    """The spec has faults; `faults` has every place."""


def _expected(text: str) -> PydanticCustomError:
    return PydanticCustomError("expected", text)


def _check_uri(uri: str) -> str:
    path = uri.partition("://")[2]
    if not _URI.fullmatch(uri) or {".", ".."} & set(path.split("/")) or "//" in path.lstrip("/"):
        raise _expected("a URI such as s3://bucket/books/ or file:///srv/books, without .. and //")
    return uri


def _check_repo(repo: str) -> str:
    # It is a directory below /pfs and a part of datum names.
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", repo) or repo == "out":
        raise _expected("a name such as books, of letters, digits and _.-, and not `out`")
    return repo


def _check_glob(glob: str) -> str:
    if glob not in {"/", "/*", "/**"}:
        parts = glob.removeprefix("/*/").removesuffix("/").split("/")
        plain = not {"", ".", ".."} & set(parts) and not re.search(r"[*?\[\]\x00-\x1f]", glob[3:])
        if not glob.startswith("/*/") or not plain:
            raise _expected("one of /, /*, /**, or /*/ and a path such as /*/reads.fastq")
    return glob


def _check_memory(text: str) -> str:
    match = _MEMORY.fullmatch(text)
    if match is None or match[2] not in _MEMORY_UNITS:
        raise _expected("an amount of memory such as 500Mi or 2G")
    return text


def _check_path(path: str) -> str:
    if not path.startswith("/") or path == "/" or "\0" in path or ".." in path.split("/"):
        raise _expected("an absolute path without ..")
    return path


def _check_variable(name: str) -> str:
    if not name or "=" in name or "\0" in name or name.startswith("HELIX_"):
        raise _expected("the name of a variable, not beginning with HELIX_")
    return name


def _check_text(text: str) -> str:
    if "\0" in text:
        raise _expected("a text without NUL")
    return text


Uri = Annotated[str, AfterValidator(_check_uri)]
Text = Annotated[str, AfterValidator(_check_text)]
AbsolutePath = Annotated[str, AfterValidator(_check_path)]
Variable = Annotated[str, AfterValidator(_check_variable)]
Name = Annotated[str, Field(min_length=1, max_length=253)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Pipeline(_Model):
    name: Name


class SecretUse(_Model):
    """A secret as files below `mount_path`, or one key of it as an environment variable."""

    name: Name
    mount_path: AbsolutePath | None = None
    key: Name | None = None
    env_var: Variable | None = None
    optional: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        is_variable = self.key is not None and self.env_var is not None
        has_either = self.key is not None or self.env_var is not None
        if (self.mount_path is not None) == has_either or has_either != is_variable:
            raise _expected("either mount_path, or key and env_var")
        return self


class Transform(_Model):
    cmd: Annotated[tuple[Text, ...], Field(min_length=1)]
    image: Name | None = None
    image_pull_policy: Name | None = None
    env: dict[Variable, Text] = {}
    secrets: tuple[SecretUse, ...] = ()
    service_account: Name | None = None
    stdin: tuple[Text, ...] | None = None  # lines
    working_dir: AbsolutePath | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.cmd[0]:
            raise _expected("a program as the first text of cmd")
        return self


class Parallelism(_Model):
    constant: Annotated[int, Field(ge=1, le=_U32)]


class ResourceRequests(_Model):
    memory: Annotated[str, AfterValidator(_check_memory)]
    cpu: Annotated[float, Field(gt=0, le=1_000_000)]
    gpu: Annotated[int, Field(ge=0, le=1_000)] = 0


class WorkerFailurePolicy(_Model):
    maximum_counted_pod_failures: Annotated[int, Field(ge=1, le=_I32)]


class Atom(_Model):
    """Files below a URI, which become datums by the rule of the glob."""

    uri: Uri = Field(alias="URI")
    repo: Annotated[str, AfterValidator(_check_repo)]
    glob: Annotated[str, AfterValidator(_check_glob)]


class InputSpec(_Model):
    """One of its members; `pfs` is the older name of `atom`."""

    atom: Atom | None = None
    pfs: Atom | None = None
    cross: tuple[InputSpec, ...] | None = None
    union: tuple[InputSpec, ...] | None = None
    group: tuple[InputSpec, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(getattr(self, name) is not None for name in type(self).model_fields) != 1:
            raise _expected("exactly one of atom, pfs, cross, union and group")
        return self

    @property
    def files(self) -> Atom | None:
        return self.atom or self.pfs

    def atoms(self) -> Iterator[Atom]:
        if self.files is not None:
            yield self.files
        for child in self.cross or self.union or self.group or ():
            yield from child.atoms()


class Egress(_Model):
    uri: Uri = Field(alias="URI")
    # `run`: the name of the run is a directory between the URI and the path of a file.
    layout: Literal["names", "run"] = "names"


class RunSpec(_Model):
    pipeline: Pipeline
    transform: Transform
    parallelism_spec: Parallelism | None = None
    resource_requests: ResourceRequests | None = None
    datum_tries: Annotated[int, Field(ge=1, le=1_000)] = 1
    job_timeout: Duration = DEFAULT_JOB_TIMEOUT
    datum_timeout: Duration | None = None
    worker_failure_policy: WorkerFailurePolicy | None = None
    node_selector: dict[Text, Text] = {}
    input: InputSpec
    egress: Egress
    # Extensions.
    queue: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    priority: Annotated[int, Field(ge=0, le=9)] | None = None
    pfs: bool = True  # whether the command needs /pfs and /scratch

    @property
    def job_timeout_seconds(self) -> float:
        return seconds(self.job_timeout)

    @property
    def datum_timeout_seconds(self) -> float | None:
        return None if self.datum_timeout is None else seconds(self.datum_timeout)

    def requires(self) -> dict[str, Any]:
        """What a worker must have, as batches say it."""
        required: dict[str, Any] = {}
        if (resources := self.resource_requests) is not None:
            required |= {"cpu_cores": resources.cpu, "ram_gb": memory_gib(resources.memory)}
            if resources.gpu:
                required["gpus"] = resources.gpu
        labels = dict(self.node_selector) | ({PFS_LABEL: "yes"} if self.pfs else {})
        return required | ({"labels": labels} if labels else {})

    def as_run(self) -> str:
        """All fields with their defaults, as JSON that loads to an equal spec."""
        return canonical_text(self.model_dump(mode="json", by_alias=True, exclude_none=True))


def memory_gib(text: str) -> float:
    match = _MEMORY.fullmatch(text)
    assert match is not None, text  # noqa: S101 - checked when the spec was read
    return float(match[1]) * float(_MEMORY_UNITS[match[2]]) / GIB


def load_spec(text: str) -> RunSpec:
    """Read JSON or YAML; raises `InvalidSpec` with all faults."""
    try:
        return _load(text)
    except RecursionError:
        raise InvalidRun("expected a spec, got values inside values without end") from None


def _load(text: str) -> RunSpec:
    text = text.removeprefix("\ufeff")
    is_json = text.lstrip().startswith("{")
    try:
        value = loads(text) if is_json else None
    except InvalidPayload as error:
        raise InvalidRun(f"the spec is not strict JSON: {error}") from None
    # JSON is read as YAML too, for the lines of its values; YAML has no tabs between values.
    source = "the spec"
    document = read_document(text.replace("\t", " ") if is_json else text, source, _names_around,
                             InvalidSpec)  # fmt: skip
    if document is None:
        raise InvalidRun("expected a spec in JSON or YAML, got an empty text")
    if is_json:
        document.data = value
    return document.model(RunSpec)


_MODELS: Final[dict[str, type[BaseModel]]] = {
    "pipeline": Pipeline,
    "transform": Transform,
    "secrets": SecretUse,
    "parallelism_spec": Parallelism,
    "resource_requests": ResourceRequests,
    "worker_failure_policy": WorkerFailurePolicy,
    "egress": Egress,
    **dict.fromkeys(("atom", "pfs"), Atom),
    **dict.fromkeys(("input", "cross", "union", "group"), InputSpec),
}


def _names_around(loc: Loc) -> list[str]:
    around = [part for part in loc[:-1] if isinstance(part, str)]
    model = _MODELS[around[-1]] if around else RunSpec
    return [field.alias or name for name, field in model.model_fields.items()]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of specs; checks across fields are not in it."""
    schema = RunSpec.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
