"""What `helixq generate` makes is accepted by those who read it: systemd and Kubernetes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from helixqueue.cli.exits import Exit
from helixqueue.cli.generate import UNITS
from helixqueue.cli.main import VERBS
from tests.support.cli import HELIXQ

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
# What may stand in a section; a key that systemd does not know is only warned of and ignored.
KNOWN = {
    "Unit": {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec"},
    "Install": {"WantedBy"},
    "Service": {
        "Type", "User", "EnvironmentFile", "ExecStart", "Restart", "RestartSec", "KillMode",
        "KillSignal", "TimeoutStopSec", "NoNewPrivileges", "CapabilityBoundingSet",
        "ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables",
        "ProtectKernelModules", "ProtectControlGroups", "RestrictAddressFamilies",
        "RestrictNamespaces", "LockPersonality", "MemoryDenyWriteExecute", "SystemCallFilter",
        "MemoryMax",
    },
}  # fmt: skip


def parsed(text):
    """A unit as sections of keys; anything else in it is an error."""
    sections, section = {}, None
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if found := re.fullmatch(r"\[(\w+)\]", line):
            section = sections.setdefault(found[1], {})
            continue
        key, sign, value = line.partition("=")
        assert sign, line
        assert key not in section, f"{key} twice"
        section[key] = value
    return sections


@pytest.fixture
def units(helixq, tmp_path):
    done = helixq("generate", "systemd", "--helixq", HELIXQ, "--user", "root", "--write", tmp_path)
    assert done.code == Exit.OK
    assert [Path(line).name for line in done.out.splitlines()] == list(UNITS)
    return {name: (tmp_path / name).read_text() for name in UNITS}


def test_units_contain_only_known_settings(units):
    for name, text in units.items():
        sections = parsed(text)
        assert "@{" not in text
        for section, keys in sections.items():
            assert set(keys) <= KNOWN[section], name
        program, verb, *_ = sections["Service"]["ExecStart"].split()
        assert (program, verb in VERBS) == (str(HELIXQ), True)
        assert "password" not in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="apt-get install systemd")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_analyze_accepts_every_unit(units, name, tmp_path):
    assert units
    path = tmp_path / name.replace("@.", "@basecall.")
    path.write_text(units[name])
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def manifests(helixq, *options):
    done = helixq("generate", "kubernetes", "--image", "registry.example/helixq:1", *options)
    assert done.code == Exit.OK, done.err
    return list(yaml.safe_load_all(done.out))


def test_manifests_match_the_kubernetes_schemas(helixq):
    made = manifests(helixq, "--queue", "basecall", "--queue", "a_b.c", "--exec", "run 'a b' \"c\"")
    assert [item["kind"] for item in made] == [
        "Job", "Deployment", "Service", "PodDisruptionBudget", "Deployment", "Deployment",
    ]  # fmt: skip
    for version in ("1.29", kubernetes_validate.latest_version()):
        for item in made:
            kubernetes_validate.validate(item, version, strict=True)
    last = made[-1]["spec"]["template"]["spec"]["containers"][0]
    assert last["command"][2] == "a_b.c"
    assert last["env"][2]["value"] == "run 'a b' \"c\""
    assert made[-1]["metadata"]["name"].startswith("helixq-worker-a-b-c-")


RUN = {
    "pipeline": {"name": "Book_words"},
    "transform": {
        "cmd": ["python3", "/extract_words.py"],
        "image": "somerepo/my_python_nlp",
        "image_pull_policy": "Always",
        "secrets": [{"name": "ssl", "mount_path": "/ssl"}],
        "service_account": "example-service",
    },
    "parallelism_spec": {"constant": 10},
    "resource_requests": {"memory": "500Mi", "cpu": 1.2, "gpu": 1},
    "node_selector": {"node_type": "falconeri_worker"},
    "input": {"atom": {"URI": "s3://b/books/", "repo": "books", "glob": "/*"}},
    "egress": {"URI": "s3://b/words/"},
}


def test_workers_of_a_run_have_the_image_and_the_resources_of_its_spec(helixq, tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(RUN))
    last = manifests(helixq, "--run", file)[-1]
    kubernetes_validate.validate(last, kubernetes_validate.latest_version(), strict=True)
    assert last["metadata"]["name"] == "helixq-run-book-words"
    assert last["spec"]["replicas"] == 10
    pod = last["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["hostUsers"]) == ("example-service", False)
    assert pod["nodeSelector"] == RUN["node_selector"]
    [container] = pod["containers"]
    assert (container["image"], container["imagePullPolicy"]) == (
        "somerepo/my_python_nlp",
        "Always",
    )
    assert container["resources"]["limits"] == {"memory": "500Mi", "nvidia.com/gpu": "1"}
    assert pod["volumes"][1]["secret"]["secretName"] == "ssl"
    assert container["volumeMounts"][1]["mountPath"] == "/etc/helixq-secrets/ssl"
    free = json.loads(container["env"][2]["value"])
    assert free["labels"] == RUN["node_selector"]
    assert free["gpus"] == 1


def test_memory_limits_of_the_system_and_of_the_service_agree(helixq, tmp_path):
    options = ["--memory", "768", "--write", tmp_path]
    assert helixq("generate", "systemd", "--helixq", HELIXQ, *options).code == Exit.OK
    service = parsed((tmp_path / "helixq-service.service").read_text())["Service"]
    assert service["ExecStart"].endswith(" --memory 768")
    assert service["MemoryMax"] == "768M"
    image = ["--image", "example.org/helixq"]
    assert helixq("generate", "kubernetes", *image, *options).code == Exit.OK
    manifests = list(yaml.safe_load_all((tmp_path / "helixq.yaml").read_text()))
    [deployment] = [each for each in manifests if each["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"][-2:] == ["--memory", "768"]
    assert container["resources"]["limits"] == {"memory": "768Mi"}


def test_queues_get_distinct_deployment_names(helixq):
    """The second would take the first one's place, without a word."""
    queues = [
        "a-b",
        "a.b",
        "a_b",
        "a--",
        "a-_",
        "x" * 63,
        "x" * 62,
        "n" * 29 + "-y",
        "n" * 29 + "-z",
    ]
    options = [word for queue in queues for word in ("--queue", queue)]
    names = [manifest["metadata"]["name"] for manifest in manifests(helixq, *options)[4:]]
    assert len(set(names)) == len(queues)
    assert names[0] == "helixq-worker-a-b"
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names)


@pytest.mark.parametrize("program", ["a 'b", "", "  "])
def test_invalid_exec_command_is_a_usage_error(helixq, program):
    made = helixq("generate", "kubernetes", "--image", "x", "--exec", program)
    worked = helixq("work", "q", "--exec", program)
    for done in (made, worked):
        assert (done.code, done.out) == (Exit.USAGE, "")
        assert "expected a command" in done.err


def test_validator_rejects_an_invalid_manifest(helixq):
    deployment = manifests(helixq)[1]
    deployment["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)


def test_pods_are_restricted_and_manifests_contain_no_secret(helixq):
    for manifest in manifests(helixq, "--queue", "q"):
        if manifest["kind"] in {"Job", "Deployment"}:
            pod = manifest["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["automountServiceAccountToken"] is False
            for container in pod["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                for variable in container["env"]:
                    if variable["name"] in {"HELIX_DSN", "HELIX_TOKEN"}:
                        assert "secretKeyRef" in variable["valueFrom"]


@pytest.mark.parametrize(
    "options",
    [
        ["systemd", "--user", "a\nExecStart=/bin/sh"],
        ["systemd", "--config", "relative"],
        ["systemd", "--host", "a b"],
        ["kubernetes", "--image", "x: y"],
        ["kubernetes", "--image", "x", "--namespace", "A"],
        ["kubernetes", "--image", "x", "--queue", "a: b"],
    ],
)
def test_options_cannot_inject_lines_into_files(helixq, options):
    done = helixq("generate", *options)
    assert (done.code, done.out) == (Exit.REFUSED, "")


def test_generate_prints_files_as_json(helixq):
    document = helixq("generate", "systemd", "--json").json
    assert [file["name"] for file in document["files"]] == list(UNITS)


def test_deployment_guides_use_existing_commands_and_options(helixq):
    """Each `helixq` line of the guides: its verb is there, and so is every option."""
    shown = set()
    for path in DEPLOY.glob("*.md"):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            lines = r"(?:^|[;&|$(] *)(?:/\S*/)?helixq ([^;&|)#\n]*)"
            for command in re.findall(lines, block, re.MULTILINE):
                words = command.split()
                inner = 2 if words[0] in {"token", "queue", "batch", "generate"} else 1
                shown.add((path.name, tuple(words[:inner]), *re.findall(r"--[a-z-]+", command)))
    assert {name for name, *_ in shown} >= {"systemd.md", "kubernetes.md", "backup.md"}
    for name, words, *options in sorted(shown):
        result = helixq(*words, "--help")
        assert result.code == Exit.OK, (name, words)
        assert [option for option in options if f"{option} " not in result.out] == [], (name, words)
