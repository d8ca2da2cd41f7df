"""The timeline of a batch: who held it when, what took effect, which late writes were refused.

One lane for the deliveries that asked for the batch, one per lease, on one axis. Every lane says in
words what it shows, so that the picture reads aloud. Everything is drawn from the ledger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from helixqueue.dashboard import formats
from helixqueue.dashboard.axis import Axis
from helixqueue.dashboard.labels import Anchor, Label, Labels
from helixqueue.states import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helixqueue.records.batch import AttemptRow, BatchDetail, RefusalRow
    from helixqueue.records.overview import LateWrite

LEASES_SHOWN = 8
_FIRST_SHOWN = 2
_DELIVERIES_DRAWN = 200
_MIDDLE, _ABOVE, _INSIDE, _BELOW = 40, 22, 44, 64  # heights in a lane
_DEADLINE = re.compile(r"did not renew before (\d{4}-\d\d-\d\d \S+)$")
_ENDS = {
    "completed": "completed",
    "lost": "lost its lease",
    "released": "returned it",
    "failed": "failed",
    "cancelled": "was cancelled",
    "recovered": "its lease was ended",
}


class Lane(NamedTuple):
    """A row of the timeline: words on the left, a picture on the right."""

    title: str
    worker: str | None  # of an attempt, to link to
    note: str
    picture: Markup


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: tuple[Lane, ...]
    axis: Markup
    folded: int  # leases that are left out, after the second
    fold_after: int  # the number of lanes above the fold
    day: str


class Delivery(NamedTuple):
    at: datetime
    words: str
    new: bool
    times: int = 1


def timeline(
    batch: BatchDetail,
    now: datetime,
    *,
    lease_seconds: float | None = None,
    all_leases: bool = False,
) -> Timeline:
    """Draw a batch that is not retired.

    `lease_seconds` is how long a lease of its queue lasts: without it, silence is not drawn.
    """
    arrivals = deliveries(batch)
    attempts = list(batch.attempts)
    folded = 0 if all_leases else max(0, len(attempts) - LEASES_SHOWN)
    if folded:
        attempts = attempts[:_FIRST_SHOWN] + attempts[_FIRST_SHOWN + folded :]
    axis = _axis_of(batch, arrivals, now)
    effect = effect_time(batch)
    pen = _Pen(axis, effect)
    lanes = [_delivery_lane(pen, arrivals)]
    for row in attempts:
        end, silent = row.ended_at or now, silence(row, lease_seconds)
        lease = _Lease(row, refusals_of(batch, row), silent, end)
        lanes.append(_attempt_lane(pen, batch, lease))
    known = {(attempt.epoch, attempt.number) for attempt in batch.attempts}
    foreign = [row for row in batch.refusals if (row.epoch, row.number) not in known]
    if foreign:
        lanes.append(_foreign_lane(pen, foreign))
    return Timeline(
        tuple(lanes), _axis_lane(axis), folded, 1 + _FIRST_SHOWN if folded else 0,
        formats.day(axis.start),
    )  # fmt: skip


def mini(
    attempts: Sequence[AttemptRow],
    refusals: Sequence[RefusalRow | LateWrite],
    state: State,
    now: datetime,
) -> Markup:
    """The same in one line of a table, without labels."""
    times = [time for row in attempts for time in (row.claimed_at, row.ended_at or now)]
    times += [time for row in refusals for time in (row.first_at, row.last_at)]
    if not times:
        return Markup("")
    start, end = min(times), max(times)
    axis = Axis(start, max(end, start + timedelta(milliseconds=1)), 1)
    drawn = Markup()
    for row in attempts:
        drawn += _rect(_bar_style(row, state), axis, row.claimed_at, row.ended_at or now, mini=True)
    for refusal in refusals:
        at = refusal.last_at
        x = min(max(axis.at(at), 3), 97)
        if any(row.claimed_at <= at <= (row.ended_at or now) for row in attempts):
            drawn += Markup('<circle class="gap" cx="{:.2f}%" cy="14" r="7.5"/>').format(x)
        drawn += _glyph("REFUSED", x, 14, "bad", size=11)
    words = formats.counted(len(attempts), "attempt")
    late = sum(refusal.times for refusal in refusals)
    words += f", {formats.counted(late, 'refused write')}" if late else ""
    words += f", {state.lower()}"
    return Markup('<svg class="lane mini" role="img" aria-label="{}">{}</svg>').format(words, drawn)


def deliveries(batch: BatchDetail) -> list[Delivery]:
    """What asked for the batch, oldest first: its submission, then every repeat on the record.

    A repeat of a source that had asked before is a redelivery.
    """
    again = {row.last_at for row in batch.sources if row.times > 1}
    found = [Delivery(batch.created_at, "new", new=True)] if batch.created_at else []
    for row in batch.decisions:
        if row.kind in {"duplicate", "conflict"}:
            # The times between the first and the last are not recorded.
            for when, times in {row.at: row.times - 1, row.last_at: 1}.items():
                redelivered = any(abs(when - at) < timedelta(seconds=1) for at in again)
                words = f"{row.kind}, redelivered" if redelivered else row.kind
                found.append(Delivery(when, words, new=False, times=max(times, 1)))
    return sorted(found)


def refusals_of(batch: BatchDetail, attempt: AttemptRow) -> list[RefusalRow]:
    """Refused writes that presented the token of this attempt, in the order of their time."""
    key = (attempt.epoch, attempt.number)
    return sorted(
        (row for row in batch.refusals if (row.epoch, row.number) == key),
        key=lambda row: row.last_at,
    )


def effect_time(batch: BatchDetail) -> datetime | None:
    """When the batch took effect: at most once."""
    return batch.finished_at if batch.state is State.COMPLETED else None


def silence(attempt: AttemptRow, lease_seconds: float | None) -> tuple[datetime, datetime] | None:
    """The part of a lost lease without a sign of life: from its last renewal to its deadline."""
    if attempt.end != "lost" or attempt.ended_at is None or lease_seconds is None:
        return None
    match = _DEADLINE.search(attempt.detail or "")
    try:
        deadline = datetime.fromisoformat(match[1]) if match else attempt.ended_at
    except ValueError:
        deadline = attempt.ended_at
    if deadline.tzinfo is None:
        deadline = attempt.ended_at
    deadline = min(max(deadline, attempt.claimed_at), attempt.ended_at)
    return max(deadline - timedelta(seconds=lease_seconds), attempt.claimed_at), deadline


class _Lease(NamedTuple):
    row: AttemptRow
    refusals: list[RefusalRow]  # of writes with its token
    silent: tuple[datetime, datetime] | None
    end: datetime  # now, if it is live


class _Pen(NamedTuple):
    """What every lane is drawn with."""

    axis: Axis
    effect: datetime | None

    def lane(self, words: str, parts: Markup, labels: Labels) -> Markup:
        grid = Markup().join(
            Markup('<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y2="72"/>').format(x)
            for x, _ in self.axis.ticks()
        )
        effect = Markup()
        if self.effect is not None:
            effect = Markup('<line class="effect" x1="{0:.2f}%" x2="{0:.2f}%" y2="100%"/>').format(
                self.axis.at(self.effect)
            )
        return Markup('<svg class="lane" role="img" aria-label="{}">{}{}{}{}</svg>').format(
            words, grid, effect, parts, labels.draw()
        )


def _axis_of(batch: BatchDetail, arrivals: Sequence[Delivery], now: datetime) -> Axis:
    """From the first delivery to the last refusal, or to now if a lease is live.

    If the wait before the first claim is longer than everything after it, the axis starts there.
    """
    ends = [row.ended_at or now for row in batch.attempts]
    ends += [row.last_at for row in batch.refusals]
    ends += [delivery.at for delivery in arrivals]
    if batch.finished_at is not None:
        ends.append(batch.finished_at)
    if not batch.attempts and batch.finished_at is None:
        ends.append(now)
    first = (
        arrivals[0].at if arrivals else min([row.claimed_at for row in batch.attempts], default=now)
    )
    last = max([first, *ends])
    claimed = min((row.claimed_at for row in batch.attempts), default=first)
    return Axis.around(claimed if claimed - first > last - claimed else first, last)


def _delivery_lane(pen: _Pen, arrivals: Sequence[Delivery]) -> Lane:
    labels, drawn, before = Labels(), Markup(), -1.0
    if pen.effect is not None:
        x = pen.axis.at(pen.effect)
        labels.add(Label("took effect, once", x, _ABOVE, "strong ok", ("end", "start"), 8))
    if arrivals and arrivals[0].at < pen.axis.start:
        waited = formats.duration((pen.axis.start - arrivals[0].at).total_seconds())
        labels.add(Label(f"asked for {waited} earlier", 0, _BELOW))
    for delivery in arrivals[:_DELIVERIES_DRAWN]:
        x = pen.axis.at(delivery.at)
        if x - before < 0.5 and not delivery.new:
            continue
        before = x
        style, radius = ("dot", 5) if delivery.new else ("ring", 4.5)
        drawn += Markup('<circle class="{}" cx="{:.2f}%" cy="{}" r="{}"/>').format(
            style, x, _MIDDLE, radius
        )
        style = "strong" if delivery.new else ""
        labels.add(Label(delivery.words, x, _ABOVE, style, dx=-4))
    spoken = "; ".join(
        f"{arrival.words} at {formats.exact(arrival.at)}" for arrival in arrivals[:8]
    )
    times = sum(arrival.times for arrival in arrivals)
    words = f"Asked for {formats.times(times)}: {spoken}" if arrivals else "No delivery on record"
    note = formats.counted(times, "delivery", "deliveries")
    return Lane("Asked for", None, note, pen.lane(words, drawn, labels))


def _attempt_lane(pen: _Pen, batch: BatchDetail, lease: _Lease) -> Lane:
    axis, row, parts = pen.axis, lease.row, Markup()
    if lease.refusals:
        parts += _ghost(axis, lease.end, lease.refusals)
    held = lease.silent[0] if lease.silent else lease.end
    words = f"{row.worker} held the lease{f' {row.ran_on}' if row.ran_on else ''}"
    parts += _rect(_bar_style(row, batch.state), axis, row.claimed_at, held, title=words)
    if lease.silent:
        words = "No sign of life; the lease was still valid"
        parts += _rect("silent", axis, *lease.silent, title=words)
    for at in _refusal_times(lease.refusals):
        parts += _glyph("REFUSED", axis.at(at), _MIDDLE, "bad", size=18)
    if row.end == "completed" and batch.state is State.COMPLETED:
        parts += _glyph("COMPLETED", axis.at(lease.end), _MIDDLE, "ok", size=22)
    note = _ENDS.get(row.end or "", "is running" if row.started_at else "has not started")
    note += ", after its deadline" if row.late else ""
    title = f"Attempt {row.attempt}"
    picture = pen.lane("; ".join(_sentences(title, lease)), parts, _labels_of(lease, axis))
    return Lane(title, row.worker, note, picture)


def _labels_of(lease: _Lease, axis: Axis) -> Labels:
    """What is written into the lane of a lease, the most important first."""
    labels, row = Labels(), lease.row
    begin_x, end_x = axis.at(row.claimed_at), axis.at(lease.end)
    if lease.refusals:
        last = lease.refusals[-1]
        words = f"late {last.operation} refused {axis.clock(last.last_at)}"
        x = axis.at(last.last_at)
        labels.add(Label(words, x, _ABOVE, "strong bad", ("start", "end", "middle")))
    at = axis.clock(lease.end)
    if row.end == "completed":
        labels.add(Label(f"completed {at}", end_x, _ABOVE, "strong", ("end", "start"), 8))
    elif row.end is not None:
        words = f"{'lease lost' if row.end == 'lost' else row.end} {at}"
        labels.add(Label(words, end_x, _BELOW, dx=-2))
    anchors: tuple[Anchor, ...] = ("start",) if begin_x < 50 else ("start", "end")
    labels.add(Label(axis.clock(row.claimed_at), begin_x, _ABOVE, anchors=anchors))
    if lease.silent:
        words = f"silent since {axis.clock(lease.silent[0])}"
        labels.add(Label(words, axis.at(lease.silent[0]), _ABOVE))
    if row.end in {"completed", None}:
        length = formats.duration((lease.end - row.claimed_at).total_seconds())
        right = end_x - 2 if row.end else end_x
        labels.add(Label(length, begin_x, _INSIDE, "on", ("start",), 10, begin_x, right))
    if lease.refusals:
        middle = (end_x + axis.at(lease.refusals[-1].last_at)) / 2
        words = f"{row.worker} no longer owns the batch"
        labels.add(Label(words, middle, _BELOW, anchors=("middle",)))
    return labels


def _foreign_lane(pen: _Pen, refusals: Sequence[RefusalRow]) -> Lane:
    """Refused writes with a token that no lease of the ledger had."""
    parts, labels = Markup(), Labels()
    for at in _refusal_times(refusals):
        x = pen.axis.at(at)
        parts += _glyph("REFUSED", x, _MIDDLE, "bad", size=18)
        labels.add(Label(pen.axis.clock(at), x, _ABOVE, "bad"))
    workers = formats.listed(sorted({row.worker for row in refusals}))
    words = f"Refused writes with unknown tokens, by {workers}"
    return Lane("Unknown token", None, workers, pen.lane(words, parts, labels))


def _sentences(title: str, lease: _Lease) -> Iterator[str]:
    yield f"{title}, {lease.row.worker}: claimed {formats.exact(lease.row.claimed_at)}"
    if lease.silent:
        yield f"last sign of life {formats.exact(lease.silent[0])}"
    if lease.row.ended_at is None:
        yield "still held"
    else:
        words = "lease lost" if lease.row.end == "lost" else lease.row.end
        yield f"{words} {formats.exact(lease.row.ended_at)}"
    for row in lease.refusals:
        words = f"late {row.operation} refused {formats.times(row.times)}"
        yield f"{words}, the last at {formats.exact(row.last_at)}"


def _axis_lane(axis: Axis) -> Markup:
    labels = Labels()
    for x, words in axis.ticks():
        anchor = "end" if x > 97 else "start" if x < 3 else "middle"
        labels.add(Label(words, x, 18, "", (anchor,)))  # type: ignore[arg-type]
    return Markup('<svg class="lane axis" aria-hidden="true">{}</svg>').format(labels.draw())


def _bar_style(attempt: AttemptRow, state: State) -> str:
    if attempt.ended_at is None:
        return "going"
    return "done" if attempt.end == "completed" and state is State.COMPLETED else "held"


def _refusal_times(refusals: Sequence[RefusalRow]) -> list[datetime]:
    """The first and the last time of each: those between them are a number."""
    return sorted({time for row in refusals for time in (row.first_at, row.last_at)})


def _ghost(axis: Axis, end: datetime, refusals: Sequence[RefusalRow]) -> Markup:
    return Markup('<line class="ghost" x1="{:.2f}%" x2="{:.2f}%" y1="{y}" y2="{y}"/>').format(
        axis.at(end), axis.at(refusals[-1].last_at), y=_MIDDLE
    )


def _rect(
    style: str, axis: Axis, begin: datetime, end: datetime, *, title: str = "", mini: bool = False
) -> Markup:
    x = axis.at(begin)
    width = max(axis.at(end) - x, 0.2)  # an instant is visible, too
    y, height = (10, 8) if mini else (30, 20)
    about = Markup("<title>{}</title>").format(title) if title else Markup()
    return Markup(
        '<rect class="{}" x="{:.2f}%" width="{:.2f}%" y="{}" height="{}" rx="3">{}</rect>'
    ).format(style, x, width, y, height, about)


def _glyph(name: str, x: float, y: int, style: str, *, size: int) -> Markup:
    return Markup(
        '<svg class="{}" x="{:.2f}%" y="{}" overflow="visible">'
        '<use href="#{}" x="{half:g}" y="{half:g}" width="{size}" height="{size}"/></svg>'
    ).format(style, x, y, name, half=-size / 2, size=size)
