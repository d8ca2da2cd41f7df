"""The values of the manifest of workers for the runs of a spec."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from helixqueue.errors import Refused
from helixqueue.runs.spec import DEFAULT_QUEUE, PFS_LABEL, load_spec

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = "/etc/helixq-secrets"


def run_values(file: Path) -> dict[str, str]:
    """Image, resources, labels and secrets of the spec, as texts of the template."""
    spec = load_spec(file.read_text(encoding="utf-8"))
    transform = spec.transform
    if transform.image is None:
        raise Refused(f"{file}: expected transform.image, with helixq in its PATH")
    free = spec.requires()
    free["labels"] = {k: v for k, v in free.get("labels", {}).items() if k != PFS_LABEL}
    parallelism = 1 if spec.parallelism_spec is None else spec.parallelism_spec.constant
    values: dict[str, Any] = {
        "image": transform.image,
        "pull": transform.image_pull_policy or "IfNotPresent",
        "account": transform.service_account or "default",
        "queue": spec.queue or DEFAULT_QUEUE,
        "free": json.dumps(free),
        "labels": spec.node_selector,
        "parallelism": parallelism,
        "resources": _resources(spec.resource_requests),
        **_secrets({use.name: use.optional for use in transform.secrets}),
    }
    return {name: json.dumps(value) for name, value in values.items()} | {
        "run": re.sub("[^a-z0-9]+", "-", spec.pipeline.name.lower()).strip("-")[:40] or "run"
    }


def _resources(requested: Any) -> dict[str, Any]:  # noqa: ANN401 - ResourceRequests
    if requested is None:
        return {}
    limits = {"memory": requested.memory}
    if requested.gpu:
        limits["nvidia.com/gpu"] = str(requested.gpu)
    return {"requests": {"cpu": str(requested.cpu), "memory": requested.memory}, "limits": limits}


def _secrets(optional: dict[str, bool]) -> dict[str, Any]:
    """A directory per secret below the directory of `--secrets`."""
    for name in optional:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name):
            raise Refused(f"expected secrets with names of Kubernetes, got {name!a}")
    volumes: list[dict[str, Any]] = [{"name": "secrets", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": "secrets", "mountPath": SECRETS}]
    for number, (name, may_lack) in enumerate(optional.items()):
        secret = {"secretName": name, "defaultMode": 0o400, "optional": may_lack}
        volumes.append({"name": f"secret-{number}", "secret": secret})
        mounts.append({"name": f"secret-{number}", "mountPath": f"{SECRETS}/{name}"})
    return {"volumes": volumes, "mounts": mounts}
