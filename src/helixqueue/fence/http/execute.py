"""One keyed request from its claim to its response."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from helixqueue.engine.fences import FenceResult
from helixqueue.errors import HelixError
from helixqueue.fence import protocol
from helixqueue.fence.encoding import (
    JSON,
    Applied,
    effect_id,
    error_text,
    probe_finding,
)
from helixqueue.fence.http.asgi import (
    App,
    BodyReceiver,
    Header,
    Scope,
    Send,
    header_text,
    respond,
)
from helixqueue.fence.http.effect import SCOPE_KEY, wrong_effect
from helixqueue.fence.http.problem import FenceProblem, problem_of
from helixqueue.fence.http.recorder import EFFECT_HEADER, Recorder
from helixqueue.fence.http.stored import FORM, CorruptResponse, StoredResponse
from helixqueue.fence.receipt import downstream_key
from helixqueue.fence.runner_async import AsyncInstructionRunner
from helixqueue.operations.instructions import run_instructions_async
from helixqueue.postgres.tenant_sessions import InvalidToken
from helixqueue.records.fence import receipt_text
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.engine.fences import FenceDecision, FenceLease
    from helixqueue.fence.decision_log import DecisionLog
    from helixqueue.fence.fence_async import AsyncFences
    from helixqueue.fence.heartbeat import AsyncFenceHeartbeat
    from helixqueue.fence.hint import SealedCache
    from helixqueue.fence.http.request_key import Owners, RequestKey
    from helixqueue.fence.http.session_transaction import SessionSource
    from helixqueue.fence.policy import Policy
    from helixqueue.fence.protocol import FenceSpec

# Changes the body that is kept: status, headers, body -> body.
Redact = Callable[[int, list[Header], bytes], bytes]
# Finds out whether the effect of a request took place: scope, body -> Applied, NOT_APPLIED or
# UNKNOWN.
Probe = Callable[[Scope, bytes], Any]

log = logging.getLogger("helixqueue.fence.http")
# A file or a socket that the server sends itself would leave before the seal.
_UNRECORDED = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")


@dataclass(frozen=True, slots=True)
class FencedApp:
    """An application, and the fences of its keyed requests."""

    app: App
    fences: AsyncFences
    policy: Policy
    owners: Owners
    redact: Redact | None = None
    probe: Probe | None = None
    hint: SealedCache | None = None
    sessions: SessionSource | None = None


class KeyedExecution:
    """Claims the fence, calls the application, seals, responds."""

    _until_end = False  # whether the response must be complete before the seal
    _lease: FenceLease
    _started: bool  # whether the effect may have started, in this attempt or an earlier one
    _lost: HelixError | None = None  # the effect could not be marked

    def __init__(
        self,
        fenced: FencedApp,
        request: RequestKey,
        decisions: DecisionLog,
        scope: Scope,
        send: Send,
    ) -> None:
        self._fenced = fenced
        self._request = request
        self._spec = request.spec
        self._decisions = decisions
        self._scope = scope
        self._send = send
        probe = fenced.probe
        self._probe = None if probe is None else partial(probe, scope, request.body)
        self._runner = AsyncInstructionRunner(
            fenced.fences.run, self._read_probe, probe=self._probe
        )
        decisions.add(key=request.key, source_id=request.key, tenant=request.spec.tenant)

    async def perform(self) -> None:
        if await self._repeat_from_cache():
            return
        request = self._request
        try:
            claim = await run_instructions_async(
                protocol.claim(
                    self._spec,
                    request.identity,
                    request.request,
                    has_probe=self._fenced.probe is not None,
                ),
                self._runner,
            )
        except HelixError as error:
            await self._end_claim()
            await self._refuse(error)
            return
        reply, lease = claim.reply, claim.lease
        self._decisions.claimed(reply.attempt, claim.waited, executes=lease is not None)
        if lease is None:
            await self._end_claim()
            await self._repeat(reply)
        else:
            self._lease, self._started = lease, reply.state is FenceState.EFFECT_STARTED
            await self._execute(lease)

    async def _end_claim(self) -> None:
        """Called when the claim does not let this request execute."""

    def _read_probe(self, returned: object) -> protocol.ProbeFinding:
        if isinstance(returned, Applied) and not isinstance(returned.result, StoredResponse):
            kind = type(returned.result).__name__
            returned = TypeError(
                f"expected the probe to return Applied(StoredResponse.of(...)), got {kind}"
            )
        return probe_finding(returned, _stored_result, self._spec.name)

    # The effect took place before.

    async def _repeat_from_cache(self) -> bool:
        """Respond with a sealed answer from the cache; it never lets a request execute."""
        if self._fenced.hint is None:
            return False
        request = self._request
        cached = await self._fenced.hint.get(self._spec, request.identity, request.request)
        if cached is None:
            return False
        try:
            stored = StoredResponse.read(cached.answer)
        except CorruptResponse:
            return False  # PostgreSQL decides
        self._decisions.add(effect_id=cached.effect)
        await self._respond_again(stored, cached.receipt, cached.sealed_at)
        return True

    async def _cache(self, reply: FenceDecision) -> None:
        if self._fenced.hint is not None:
            request = self._request
            await self._fenced.hint.put(self._spec, request.identity, request.request, reply)

    async def _repeat(self, reply: FenceDecision) -> None:
        receipt = receipt_text(reply.receipt) or ""
        sealed_at = "" if reply.sealed_at is None else reply.sealed_at.isoformat()
        self._decisions.add(effect_id=reply.effect, receipt=receipt)
        proof = {"receipt": receipt, "recorded_at": sealed_at}
        if reply.answer is None:
            detail = "the effect took place once; only its receipt is kept"
            problem = FenceProblem("result-expired", detail, more=proof)
            await self._respond_with(problem, "duplicate")
            return
        try:
            stored = _read_stored(reply)
        except CorruptResponse:
            log.exception("fence %s: a stored response cannot be read", self._spec.name)
            detail = "the stored response cannot be read"
            await self._respond_with(FenceProblem("in-doubt", detail, more=proof), "in-doubt")
            return
        await self._cache(reply)
        await self._respond_again(stored, receipt, sealed_at)

    async def _respond_again(self, stored: StoredResponse, receipt: str, sealed_at: str) -> None:
        headers, body = list(stored.headers), stored.body
        if stored.omitted:
            headers = [(n, v) for n, v in headers if not n.startswith(b"content-")]
            headers += [(b"content-type", b"application/json"), (b"idempotency-stored", b"partial")]
            body = b'{"receipt":"%b","body":"omitted"}' % receipt.encode()
        if stored.status not in {204, 304}:
            headers.append((b"content-length", str(len(body)).encode()))
        headers += [
            (b"idempotency-replayed", b"true"),
            (b"idempotent-replayed", b"true"),
            (b"idempotency-receipt", receipt.encode()),
            (b"idempotency-recorded-at", sealed_at.encode()),
            (b"cache-control", b"no-store"),
        ]
        self._decisions.record("duplicate", receipt=receipt, status=stored.status)
        await respond(self._send, stored.status, headers, body)

    # The effect is this request's to execute.

    async def _execute(self, lease: FenceLease) -> None:
        async def decide(status: int, headers: list[Header], body: bytes | None) -> list[Header]:
            return await self._decide(lease, status, headers, body)

        recorder = Recorder(
            self._send, decide, self._request.route.max_answer_bytes, until_end=self._until_end
        )
        failure: BaseException | None = None
        with self._renewing(lease):
            try:
                receive = BodyReceiver(self._request.body)
                await self._fenced.app(self._inner_scope(), receive, recorder)
            except BaseException as error:  # noqa: BLE001 - raised again below
                failure = error
            finally:
                recorder.close()
        if isinstance(recorder.failure, HelixError):
            # The fence was decided otherwise, or the database failed: the response is not sent.
            await self._refuse(recorder.failure)
            return
        if recorder.failure is not None or not recorder.decided:
            # Also a response that could not be stored, which the application may have swallowed.
            silent = RuntimeError("the application ended without a response")
            failure = recorder.failure or failure or silent
            await self._doubt(lease, error_text(failure))
        if failure is not None:
            raise failure

    def _renewing(self, lease: FenceLease) -> AbstractContextManager[None]:
        return _tracked(self._fenced.fences.heartbeat, lease, self._spec)

    def _inner_scope(self) -> Scope:
        """The scope of the endpoint, without extensions that bypass the recorder."""
        extensions = self._scope.get("extensions") or {}
        recorded = {name: value for name, value in extensions.items() if name not in _UNRECORDED}
        return {**self._scope, "extensions": recorded, SCOPE_KEY: self}

    def session(self) -> Any:  # noqa: ANN401 - the application's own class
        raise wrong_effect(self._request.route.path, "session", self._request.route.effect)

    async def start_effect(self) -> str:
        """Commit the marker, before the effect starts. Returns the key for the next system."""
        if self._request.route.effect != "marked":
            raise wrong_effect(self._request.route.path, "marked", self._request.route.effect)
        if not self._started:
            try:
                await run_instructions_async(protocol.start(self._spec, self._lease), self._runner)
            except HelixError as error:
                self._lost = error
                raise
            self._started = True
        return downstream_key(self._lease.key)

    async def _decide(
        self, lease: FenceLease, status: int, headers: list[Header], body: bytes | None
    ) -> list[Header]:
        """Seal before the first byte is sent, or release, or doubt. Returns headers to add."""
        if self._lost is not None:
            raise self._lost
        self._decisions.add(status=status)
        effect = effect_id(header_text(headers, EFFECT_HEADER), self._spec.name)
        if effect == "none" or status in self._request.route.before_the_effect:
            detail = f"answered {status} before the effect"
            await self._release(lease, detail)
            self._decisions.record("released")
            return []
        if status >= 500:
            # Frameworks answer 500 while they handle the exception: it is the cause of the doubt.
            cause = sys.exc_info()[1]
            detail = "" if cause is None else f": {error_text(cause)}"
            await self._doubt(lease, f"answered {status}{detail}")
            return []
        kept = self._redacted(status, headers, body)
        stored = StoredResponse.of(status, headers, kept, self._request.route.keep_headers)
        result = _stored_result(stored, effect)
        reply = await self._seal(lease, result)
        await self._cache(reply)
        receipt = receipt_text(reply.receipt) or ""
        self._decisions.record("new", effect_id=reply.effect, receipt=receipt)
        added = [(b"idempotency-receipt", receipt.encode())]
        return [*added, (b"idempotency-stored", b"partial")] if stored.omitted else added

    async def _seal(self, lease: FenceLease, result: FenceResult) -> FenceDecision:
        return await run_instructions_async(protocol.seal(self._spec, lease, result), self._runner)

    async def _release(self, lease: FenceLease, detail: str) -> None:
        await run_instructions_async(protocol.release(self._spec, lease, detail), self._runner)

    def _redacted(self, status: int, headers: list[Header], body: bytes | None) -> bytes | None:
        if self._fenced.redact is None or body is None:
            return body
        try:
            kept = bytes(self._fenced.redact(status, headers, body))
        except Exception:
            # Sealed without its body: that is better than a second execution.
            log.exception("fence %s: the redactor failed", self._spec.name)
            return None
        return kept if len(kept) <= self._request.route.max_answer_bytes else None

    async def _doubt(self, lease: FenceLease, detail: str) -> None:
        """The endpoint failed, perhaps in the middle of its effect."""
        try:
            if not self._started:
                await self._release(lease, detail)
                self._decisions.record("released")
                return
            await run_instructions_async(protocol.doubt(self._spec, lease, detail), self._runner)
        except HelixError:
            # The lease expires, and that comes to the same.
            log.exception("fence %s: could not be put in doubt", self._spec.name)
        self._decisions.record("doubted")

    # The request is refused.

    async def _refuse(self, error: HelixError) -> None:
        if isinstance(error, InvalidToken):
            raise error  # for the authentication in front of this middleware
        root = self._scope.get("root_path", "")
        status, headers, body = problem_of(error, self._fenced.policy, root).response()
        self._decisions.record_error(error, status=status)
        await respond(self._send, status, headers, body)

    async def _respond_with(self, problem: FenceProblem, decision: str) -> None:
        status, headers, body = problem.response()
        self._decisions.record(decision, status=status)
        await respond(self._send, status, headers, body)


@contextmanager
def _tracked(heartbeat: AsyncFenceHeartbeat, lease: FenceLease, spec: FenceSpec) -> Iterator[None]:
    tracked = heartbeat.track(lease, spec.times)
    try:
        yield
    finally:
        heartbeat.untrack(tracked)


def _stored_result(stored: StoredResponse, effect: str | None) -> FenceResult:
    return FenceResult(FORM, stored.write(), effect=effect)


def _read_stored(reply: FenceDecision) -> StoredResponse:
    """The response that was sealed; raises `CorruptResponse`."""
    data = reply.answer or b""
    if reply.form == JSON:
        # The result of a resolution that named no status.
        return StoredResponse.of(200, [(b"content-type", b"application/json")], data)
    if reply.form != FORM:
        raise CorruptResponse(f"expected a response of the form {FORM}, got {reply.form}")
    return StoredResponse.read(data)
