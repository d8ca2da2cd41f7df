"""One keyed request from its claim to its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from helixqueue.engine.fences import FenceResult
from helixqueue.errors import Conflict, HelixError
from helixqueue.fence import protocol
from helixqueue.fence.counters import word_of
from helixqueue.fence.encoding import Applied, effect_id, found, receipt_text, told_of
from helixqueue.fence.http.asgi import Given, Header, Scope, Send, respond, text_of
from helixqueue.fence.http.problem import FenceProblem
from helixqueue.fence.http.recorder import EFFECT_HEADER, Recorder
from helixqueue.fence.http.refusal import problem_of
from helixqueue.fence.http.stored import FORM, Corrupt, Stored
from helixqueue.fence.runner import AsyncStepRunner
from helixqueue.operations.steps import run_steps_async
from helixqueue.postgres.tenant_sessions import InvalidToken

if TYPE_CHECKING:
    from helixqueue.engine.fences import FenceDecision, FenceLease
    from helixqueue.fence.http.middleware import IdempotencyMiddleware, RequestJournal
    from helixqueue.fence.http.request_key import RequestKey

# Changes what is kept of a body: status, headers, body > body.
Redact = Callable[[int, list[Header], bytes], bytes]
# Looks whether the effect of a request took place: scope, body > Applied, NOT_APPLIED or UNKNOWN.
Probe = Callable[[Scope, bytes], Any]

log = logging.getLogger("helixqueue.fence.http")
# A file or a socket handed to the server would leave before it is sealed.
_UNSEEN = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")


class KeyedExecution:
    """Claim, let the application work, seal, answer."""

    def __init__(
        self,
        ours: IdempotencyMiddleware,
        keyed: RequestKey,
        journal: RequestJournal,
        scope: Scope,
        send: Send,
    ) -> None:
        self._ours = ours
        self._keyed = keyed
        self._plan = keyed.plan
        self._journal = journal
        self._scope = scope
        self._send = send
        look = None if ours.probe is None else partial(ours.probe, scope, keyed.body)
        self._hands = AsyncStepRunner(ours.fences.run, probe=look)
        self._hands.found = self._found
        journal.know(key=keyed.key, source_id=keyed.key, tenant=keyed.plan.tenant)

    async def perform(self) -> None:
        if await self._hinted():
            return
        keyed = self._keyed
        try:
            claimed = await run_steps_async(
                protocol.claim(
                    keyed.plan,
                    keyed.identity,
                    keyed.request,
                    probes=self._ours.probe is not None,
                ),
                self._hands,
            )
        except HelixError as refused:
            await self._refuse(refused)
            return
        self._journal.know(attempt=claimed.told.attempt)
        if claimed.waited:
            counters = self._ours.fences.counters
            counters.took("http", self._plan.name, "waited", claimed.waited)
        if claimed.held is None:
            await self._tell_again(claimed.told)
            return
        if (claimed.told.attempt or 1) > 1:
            self._ours.fences.counters.retook("http", self._plan.name)
        await self._execute(claimed.held)

    # Perhaps done before.

    def _found(self, looked: object) -> protocol.Found:
        if isinstance(looked, Applied) and not isinstance(looked.result, Stored):
            kind = type(looked.result).__name__
            looked = TypeError(f"expected the probe to return Applied(Stored.of(...)), got {kind}")
        return found(looked, _written, self._plan.name)

    # Done before.

    async def _hinted(self) -> bool:
        """A sealed answer from the cache; never a permission to execute."""
        if self._ours.hint is None:
            return False
        known = await self._ours.hint.get(self._plan, self._keyed.identity, self._keyed.request)
        if known is None:
            return False
        try:
            stored = Stored.read(known.answer)
        except Corrupt:
            return False  # PostgreSQL decides
        await self._repeat(stored, known.receipt, known.sealed_at)
        return True

    async def _remember(self, told: FenceDecision) -> None:
        if self._ours.hint is not None and told.answer is not None:
            await self._ours.hint.put(self._plan, self._keyed.identity, self._keyed.request, told)

    async def _tell_again(self, told: FenceDecision) -> None:
        receipt = receipt_text(told) or ""
        sealed_at = "" if told.sealed_at is None else told.sealed_at.isoformat()
        self._journal.know(effect_id=told.effect, receipt=receipt)
        proof = {"receipt": receipt, "recorded_at": sealed_at}
        if told.answer is None:
            detail = "it took effect once; only its receipt is left"
            await self._answer(FenceProblem("result-expired", detail, more=proof))
            return
        try:
            if told.form != FORM:
                raise Corrupt(f"expected an answer of the form {FORM}, got {told.form}")
            stored = Stored.read(told.answer)
        except Corrupt:
            log.exception("fence %s: a kept answer cannot be read", self._plan.name)
            await self._answer(FenceProblem("in-doubt", "its answer cannot be read", more=proof))
            return
        await self._remember(told)
        await self._repeat(stored, receipt, sealed_at)

    async def _repeat(self, stored: Stored, receipt: str, sealed_at: str) -> None:
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
        self._journal.decided("repeated", receipt=receipt, status=stored.status)
        await respond(self._send, stored.status, headers, body)

    # To be done.

    async def _execute(self, held: FenceLease) -> None:
        async def decide(status: int, headers: list[Header], body: bytes | None) -> list[Header]:
            return await self._decide(held, status, headers, body)

        recorder = Recorder(self._send, decide, self._keyed.route.max_answer_bytes)
        pulse = self._ours.fences.pulse
        beat = pulse.hold(held, self._plan.times)
        failure: BaseException | None = None
        try:
            await self._ours.app(self._inner_scope(), Given(self._keyed.body), recorder)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failure = error
        finally:
            pulse.drop(beat)
        if isinstance(recorder.refused, HelixError):
            # Somebody else decided meanwhile, or the store went away: its answer is not sent.
            await self._refuse(recorder.refused)
            return
        if recorder.refused is not None or not recorder.decided:
            # Also what we could not write down, which the application may have swallowed.
            nothing = RuntimeError("the application ended without an answer")
            failure = recorder.refused or failure or nothing
            await self._doubt(held, told_of(failure))
        if failure is not None:
            raise failure

    def _inner_scope(self) -> Scope:
        """The application's scope, without ways to answer that could not be recorded."""
        extensions = self._scope.get("extensions") or {}
        seen = {name: value for name, value in extensions.items() if name not in _UNSEEN}
        return {**self._scope, "extensions": seen}

    async def _decide(
        self, held: FenceLease, status: int, headers: list[Header], body: bytes | None
    ) -> list[Header]:
        """Seal before the first byte leaves; or release, or doubt. Gives headers to add."""
        self._journal.know(status=status)
        effect = effect_id(text_of(headers, EFFECT_HEADER), self._plan.name)
        if effect == "none" or status in self._keyed.route.before_the_effect:
            said = f"answered {status} before the effect"
            await run_steps_async(protocol.release(self._plan, held, said), self._hands)
            self._journal.decided("released")
            return []
        if status >= 500:
            await self._doubt(held, f"answered {status}")
            return []
        kept = self._redacted(status, headers, body)
        stored = Stored.of(status, headers, kept, self._keyed.route.keep_headers)
        answer = _written(stored, effect)
        told = await run_steps_async(protocol.seal(self._plan, held, answer), self._hands)
        await self._remember(told)
        receipt = receipt_text(told) or ""
        self._journal.decided("executed", effect_id=effect, receipt=receipt)
        added = [(b"idempotency-receipt", receipt.encode())]
        return [*added, (b"idempotency-stored", b"partial")] if stored.omitted else added

    def _redacted(self, status: int, headers: list[Header], body: bytes | None) -> bytes | None:
        if self._ours.redact is None or body is None:
            return body
        try:
            kept = bytes(self._ours.redact(status, headers, body))
        except Exception:
            # Kept without its body: running it again would be worse than not repeating it.
            log.exception("fence %s: the redactor failed", self._plan.name)
            return None
        return kept if len(kept) <= self._keyed.route.max_answer_bytes else None

    async def _doubt(self, held: FenceLease, why: str) -> None:
        try:
            await run_steps_async(protocol.doubt(self._plan, held, why), self._hands)
        except HelixError:
            # The lease will run out, and that is the same doubt.
            log.exception("fence %s: could not be put in doubt", self._plan.name)
        self._journal.decided("doubted")

    # Not to be done.

    async def _refuse(self, refused: HelixError) -> None:
        if isinstance(refused, InvalidToken):
            raise refused  # whoever let the request in asked who it is, and tells it
        if isinstance(refused, Conflict):
            self._journal.know(diff_ops=len(refused.diff))
        await self._answer(problem_of(refused, self._ours.policy), word_of(refused))

    async def _answer(self, problem: FenceProblem, decision: str | None = None) -> None:
        status, headers, body = problem.response()
        self._journal.decided(decision or problem.kind, status=status)
        await respond(self._send, status, headers, body)


def _written(stored: Stored, effect: str | None) -> FenceResult:
    return FenceResult(FORM, stored.write(), effect=effect)
