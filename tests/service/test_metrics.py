"""Metrics of service and worker, as Prometheus scrapes them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from helixqueue import AsyncHelixQueue, HelixQueue, Queue
from helixqueue.engine import metrics, streams
from helixqueue.engine.metrics import SERIES_MAX
from helixqueue.errors import NotPermitted
from helixqueue.records.metric import FAMILIES, MetricRow
from helixqueue.service.metrics import stored_text
from helixqueue.worker.health import WorkerHealth
from helixqueue.worker.in_flight import InFlight
from helixqueue.worker.metrics import metrics_endpoint
from tests.support.lab import POOLED, Lab, end_minute, wait_until

# REQUIREMENTS H10, to the letter.
EIGHT = (
    "helix_assign_conflict_total", "helix_duplicate_active_assignments",
    "helix_audit_missing_total", "helix_stream_pending", "helix_lease_reaped_total",
    "helix_process_latency_seconds", "helix_id_normalization_changed_total",
    "helix_xack_after_commit_failures",
)  # fmt: skip
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def every_second(database):
    """The duty that keeps the figures runs every tenth of a second."""
    with Lab(database, "operator") as operator:
        operator.run(metrics.set_duty(duty="metrics", every_seconds=0.1))
        operator.run(metrics.set_duty(duty="reconcile", every_seconds=0.1))


def value(http, name, **labels):
    """The sum of the samples of a metric that have these labels."""
    wanted = {f'{key}="{text}"' for key, text in labels.items()}
    return sum(
        float(number)
        for found, labelled, number in SAMPLE.findall(http.get("/metrics").text)
        if found == name and wanted <= set(labelled.split(","))
    )


def test_service_exports_the_eight_required_metrics_under_their_names(site, lab):
    lab.submit("Sa\u0308mple", "s2")  # one identity changes when it becomes canonical
    [first, second] = lab.claim(2, lease_seconds=60)
    lab.complete(first)
    lab.pass_time(second.batch)
    lab.claim(1, lease_seconds=60)
    lab.complete(second)  # refused: it was reaped
    lab.submit("s2", "s2", "s3")
    request = uuid.uuid4()
    for _ in range(3):
        lab.claim(1, request=request, lease_seconds=60)
    end_minute(lab.database)
    group = streams.StreamGroup("a", f"in-{lab.q}", "g")
    figures = {"lag": 7, "oldest_seconds": 12.5, "readers": 2, "pending_by_consumer": {"c1": 3}}
    lab.run(streams.store_look(group, seconds=1, figures=figures))
    lab.run(streams.count_entries(group, deliveries=11, vanished=1, xack_failures=2))
    with site.client("metrics") as http:
        queue = {"tenant": "a", "queue": lab.q}
        conflicts = "helix_assign_conflict_total"
        wait_until(lambda: value(http, conflicts, **queue, operation="submit") == 2)
        wait_until(lambda: value(http, conflicts, **queue, operation="claim") == 2)
        stale = queue | {"operation": "settle"}
        wait_until(lambda: value(http, "helix_stale_writes_total", **stale) == 1)
        assert value(http, conflicts, **queue) == 4
        wait_until(lambda: value(http, "helix_process_latency_seconds_count", **queue) == 1)
        assert value(http, "helix_lease_reaped_total", **queue) == 1
        assert value(http, "helix_id_normalization_changed_total", **queue) == 1
        assert value(http, "helix_batches", **queue, state="COMPLETED") == 1
        assert value(http, "helix_batches", **queue, state="RUNNING") == 2
        assert value(http, "helix_submissions_total", **queue, decision="new") == 3
        stream = {"tenant": "a", "stream": f"in-{lab.q}", "group": "g"}
        wait_until(lambda: value(http, "helix_xack_after_commit_failures", **stream) == 2)
        wait_until(lambda: value(http, "helix_stream_readers", **stream) == 2)
        assert value(http, "helix_stream_pending", **stream, consumer="c1") == 3
        assert value(http, "helix_stream_lag", **stream) == 7
        assert value(http, "helix_stream_oldest_seconds", **stream) == 12.5
        assert value(http, "helix_stream_deliveries_total", **stream) == 11
        assert value(http, "helix_stream_vanished_total", **stream) == 1
        text = http.get("/metrics").text
    names = {name for name, _, _ in SAMPLE.findall(text)}
    histogram = EIGHT[5]
    assert {*EIGHT} - {histogram} <= names
    assert {f"{histogram}_{part}" for part in ("bucket", "sum", "count")} <= names
    for name in EIGHT:
        assert re.search(rf"^# TYPE {name} (counter|gauge|histogram|untyped)$", text, re.MULTILINE)


def test_tenant_reads_its_own_figures_without_tenant_labels(site, lab):
    lab.submit("s")
    with Lab(site.database) as other:
        other.queue(tenant="b")
        other.submit("s", tenant="b")
        with site.client("operate") as http:
            wait_until(lambda: value(http, "helix_batches", queue=lab.q, state="PENDING") == 1)
            text = http.get("/metrics").text
            assert other.q not in text
            assert "tenant=" not in text
            assert not re.search(r"^helix_backend_xmin_age", text, re.MULTILINE)  # of the server
        with site.client("metrics") as http:
            wait_until(
                lambda: value(http, "helix_batches", tenant="b", queue=other.q, state="PENDING")
            )


def test_fence_calls_are_exported_per_endpoint_and_tenant(site, lab):
    headers = {"Idempotency-Key": f'"{lab.q}-0123456789abcdef"'}
    path = f"/v1/queues/{lab.q}/batches"
    with site.client("submit") as http:
        for reads in (1, 1, 2):
            body = {"identity": "s", "payload": {"reads": reads}}
            http.post(path, json=body, headers=headers)
    end_minute(lab.database)
    calls = {"fence": "http /v1/queues/{queue}/batches"}
    of_tenant = calls | {"tenant": "a"}
    with site.client("metrics") as http, site.client("operate", tenant="b") as other:
        for decision in ("new", "duplicate", "conflict"):
            wait_until(
                lambda decision=decision: value(
                    http, "helix_fence_calls_total", **of_tenant, decision=decision
                ),
                decision,
            )
        assert value(http, "helix_fence_conflict_differences_total", **of_tenant) == 1
        assert value(http, "helix_fence_seal_seconds_count", **of_tenant) >= 1
        assert value(other, "helix_fence_calls_total", **calls) == 0
        assert "tenant=" not in other.get("/metrics").text


def test_stored_series_are_in_the_format_of_prometheus():
    """Also names that need escapes, and a histogram from the rows of its buckets."""
    rows = [
        MetricRow("a\\b", "helix_batches", 'q"1\n', "PENDING", 3.0),
        MetricRow("*", "helix_backend_xmin_age", "", "", 1e20),
        MetricRow("a", "helix_fence_seal_seconds", "refund", "0.5", 2.0),
        MetricRow("a", "helix_fence_seal_seconds", "refund", "+Inf", 1.0),
        MetricRow("a", "helix_fence_seal_seconds", "refund", "sum", 7.5),
        MetricRow("a", "feed_looked", "f", "1/2/3", 1.0),
    ]
    families = {
        family.name: family
        for family in text_string_to_metric_families(stored_text(rows, tenants=True))
    }
    [batches] = families["helix_batches"].samples
    assert batches.labels == {"tenant": "a\\b", "queue": 'q"1\n', "state": "PENDING"}
    [age] = families["helix_backend_xmin_age"].samples
    assert (age.labels, age.value) == ({"tenant": ""}, 1e20)
    seal = families["helix_fence_seal_seconds"].samples
    by_bound = {item.labels.get("le", item.name): item.value for item in seal}
    assert (by_bound["0.1"], by_bound["0.5"], by_bound["14400"], by_bound["+Inf"]) == (0, 2, 2, 3)
    assert by_bound["helix_fence_seal_seconds_count"] == 3
    assert by_bound["helix_fence_seal_seconds_sum"] == 7.5
    assert families["helix_series_truncated"].samples[0].value == 0
    assert "feed_looked" not in families
    types = {family.name: family.type for family in families.values()}
    for family in FAMILIES:
        name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
        assert types[name] == {"untyped": "unknown"}.get(family.kind, family.kind)
    many = [MetricRow("a", "helix_batches", f"q{n}", "", 0.0) for n in range(SERIES_MAX + 1)]
    assert "helix_series_truncated 1.0" in stored_text(many, tenants=True)


@pytest.mark.parametrize("scope", ["submit", "work", "read", "payloads", "admin"])
def test_token_without_operate_or_metrics_reads_no_figures(site, scope):
    with site.client(scope) as http:
        assert http.get("/metrics").status_code == 403


def test_admin_token_cannot_grant_the_figures_of_all_tenants(site, http):
    response = http.post("/v1/tokens", json={"name": "greedy", "scopes": ["metrics"]})
    assert response.status_code == 403
    name = "scraper"
    site.token("metrics", name=name)
    assert http.post(f"/v1/tokens/{name}/rotate", json={}).status_code == 403


def test_login_of_one_tenant_reads_no_figures_of_others(database):
    with Lab(database, "app_a") as app, pytest.raises(NotPermitted):
        app.run(metrics.read_metrics(every_tenant=True))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def worker(database):
    """A worker in a thread whose metrics are served; yields its queue and its port."""
    queue = Queue(f"w{time.monotonic_ns()}")

    @queue.handler
    def run(lease):
        if lease.identity == "bad":
            raise ValueError

    port = free_port()
    loop, task = asyncio.new_event_loop(), []

    async def work():
        async with AsyncHelixQueue(database.dsn(), "a") as helix:
            task.append(asyncio.ensure_future(helix.work(queue, metrics_port=port)))
            await asyncio.gather(*task, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(work(),))
    thread.start()
    try:
        yield queue, port
    finally:
        loop.call_soon_threadsafe(task[0].cancel)
        thread.join()
        loop.close()


def test_worker_serves_its_metrics_on_loopback_only(worker, database):
    queue, port = worker
    with HelixQueue(database.dsn(), "a") as helix:
        helix.submit(queue, identity="good", payload={})
        helix.submit(queue, identity="bad", payload={})
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        wait_until(lambda: _reaches(http))
        wait_until(lambda: value(http, "helix_worker_attempts_total", outcome="completed") == 1)
        wait_until(lambda: value(http, "helix_worker_attempts_total", outcome="failed") >= 1)
        assert value(http, "helix_worker_handler_seconds_count") >= 2
        assert value(http, "helix_worker_claim_seconds_count") >= 1
        assert "good" not in http.get("/metrics").text
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    # The second is an address of every Linux machine, which a socket of all addresses answers.
    for address in (others | {"127.0.0.2"}) - {"127.0.0.1"}:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, port), timeout=5).close()


def test_worker_serves_its_metrics_on_the_address_it_is_given():
    port = free_port()
    with metrics_endpoint(WorkerHealth(2, InFlight("gpu-1")), "127.0.0.2", port):
        text = httpx.get(f"http://127.0.0.2:{port}/metrics").text
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/metrics")
    assert "helix_worker_slots 2.0" in text


def _reaches(http):
    try:
        return http.get("/metrics").is_success
    except httpx.TransportError:
        return False


def test_several_processes_export_the_sum_of_their_counters(tmp_path):
    """As behind a server that forks: any of the processes answers for all."""
    program = (
        "import os\n"
        "from helixqueue.service.metrics import Metrics\n"
        "from helixqueue.service.tenant_limits import TenantLimits\n"
        "limits = TenantLimits(1, 'x', kind='too-busy', retry_after=1)\n"
        "metrics = Metrics(limits, limits)\n"
        "child = os.fork()\n"
        "metrics.count_problem('conflict')\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "    print(metrics.text())"
    )
    done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
    assert 'helix_http_problems_total{problem="conflict"} 2.0' in done.stdout


@pytest.mark.skipif(POOLED, reason="the pooler does not concern Prometheus")
def test_prometheus_scrapes_service_and_worker(site, worker, tmp_path):
    if shutil.which("prometheus") is None:
        assert not os.environ.get("CI"), "CI installs prometheus"
        pytest.skip("apt-get install -y prometheus")
    _, worker_port = worker
    token = tmp_path / "token"
    token.write_text(site.token("metrics"))
    port = free_port()
    (tmp_path / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                "scrape_configs": [
                    {
                        "job_name": "helixqueue",
                        "authorization": {"credentials_file": str(token)},
                        "static_configs": [{"targets": [site.url.removeprefix("http://")]}],
                    },
                    {
                        "job_name": "helixqueue-worker",
                        "static_configs": [{"targets": [f"127.0.0.1:{worker_port}"]}],
                    },
                ],
            }
        )
    )
    prometheus = subprocess.Popen(
        ["prometheus", f"--config.file={tmp_path}/prometheus.yml",
         f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:

            def ask(query):
                try:
                    response = http.get("/api/v1/query", params={"query": query})
                except httpx.TransportError:
                    return None
                return response.json()["data"]["result"] if response.is_success else None

            wait_until(lambda: len(ask("up == 1") or ()) == 2, "both targets")
            assert wait_until(lambda: ask("helix_batches"))
            assert wait_until(lambda: ask("helix_worker_slots"))
    finally:
        prometheus.kill()
        prometheus.wait()


def test_metrics_of_many_queues_take_little_time(site):
    """BUDGETS: 50 ms; processor time, because the machine may be busy."""
    with Lab(site.database) as lab:
        for number in range(100):
            lab.queue(f"{lab.q}-{number}")
    with site.client("metrics") as http:
        wait_until(lambda: value(http, "helix_batches", queue=f"{lab.q}-99") == 0
                   and f"{lab.q}-99" in http.get("/metrics").text)  # fmt: skip
        taken = []
        for _ in range(5):
            began = time.process_time()
            assert http.get("/metrics").is_success
            taken.append(time.process_time() - began)
    assert min(taken) < 0.1
