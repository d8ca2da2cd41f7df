"""The result table: figures, must and goal, on the terminal, as JSON and in the docs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks.rounds import Round, medians

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

BEGIN = "<!-- engine: begin (written by python -m benchmarks.engine --write) -->"
END = "<!-- engine: end -->"


@dataclass(frozen=True)
class Budget:
    """One bar of the budgets; with `least` it is a lower bound."""

    row: str
    title: str
    must: float
    goal: float
    least: bool  # the bar is a lower bound
    unit: str  # "x" for a ratio, "KB", "s"
    absolute: str  # how the absolute figures are shown
    digits: int = 2  # after the point


BUDGETS = (
    Budget(
        "wal",
        "WAL per batch, submit to completed, 4 steps, full-page images excluded",
        1.8,
        1.5,
        least=False,
        unit="KB",
        absolute="submit {submit:,.0f} B + drain {drain:,.0f} B; images beside {images:,.0f} B",
    ),
    Budget(
        "drain",
        'drain in hundreds, 2 client processes, vs. raw "claim 100, then done", 8 clients',
        0.60,
        0.80,
        least=True,
        unit="x",
        absolute="{ours:,.0f}/s vs. {raw:,.0f}/s",
    ),
    Budget(
        "one",
        'one by one, 1 client, vs. raw "claim 1, then done", 1 client, same driver',
        0.60,
        0.80,
        least=True,
        unit="x",
        absolute="{ours:,.0f}/s vs. {raw:,.0f}/s (pgbench {pgbench:,.0f}/s)",
    ),
    Budget(
        "bulk",
        "bulk submit, 1,000 a call, vs. pgqueuer's bulk enqueue",
        0.7,
        1.0,
        least=True,
        unit="x",
        absolute="{ours:,.0f}/s vs. {pgqueuer:,.0f}/s",
    ),
    Budget(
        "single",
        "single submit vs. raw one-row commit, 1 client, same driver",
        0.45,
        0.60,
        least=True,
        unit="x",
        absolute="{ours:,.0f}/s vs. {raw:,.0f}/s (pgbench {pgbench:,.0f}/s)",
    ),
    Budget(
        "depth",
        "buffers touched by claim(10): {pending:,.0f} pending vs. 10 pending",
        1.5,
        1.2,
        least=False,
        unit="x",
        absolute="{deep:,.0f} vs. {shallow:,.0f} pages",
    ),
    Budget(
        "snapshot",
        "buffers of a hinted claim(10) under a snapshot held over {claims:,.0f} claims",
        3.0,
        1.5,
        least=False,
        unit="x",
        absolute="{before:,.0f} to {after:,.0f} pages (without hint {unhinted:,.0f})",
    ),
    Budget(
        "finished",
        "drain in hundreds, 2 client processes, with finished batches vs. without",
        0.90,
        0.97,
        least=True,
        unit="x",
        absolute="{ours:,.0f}/s beside {batches:,.0f} finished vs. {empty:,.0f}/s",
    ),
    Budget(
        "run",
        "server CPU per batch, last tenth of a run of {batches:,.0f} vs. its first tenth",
        1.15,
        1.05,
        least=False,
        unit="x",
        absolute="{first:,.1f} to {last:,.1f} us; {first_rate:,.0f}/s to {last_rate:,.0f}/s",
    ),
    Budget(
        "check",
        "`check`, all invariants, per million batches",
        60.0,
        20.0,
        least=False,
        unit="s",
        absolute="{seconds:,.1f} s for {batches:,.0f} batches",
        digits=1,
    ),
    Budget(
        "seal",
        "seal of the ledger, per million batches since the last one",
        30.0,
        10.0,
        least=False,
        unit="s",
        absolute="{seconds:,.1f} s for {batches:,.0f} batches",
        digits=1,
    ),
    Budget(
        "replay",
        "`replay`",
        500_000,
        1_000_000,
        least=True,
        unit="steps/s",
        absolute="{seconds:,.1f} s for {steps:,.0f} steps",
        digits=0,
    ),
)


@dataclass(frozen=True)
class Line:
    title: str
    measured: str
    spread: str
    must: str
    goal: str
    verdict: str
    absolute: str


def lines(rounds: list[Round], notes: dict[str, str]) -> list[Line]:
    ratios, figures = medians(rounds)
    made = []
    for budget in BUDGETS:
        must, goal = (_bar(budget, bar) for bar in (budget.must, budget.goal))
        if budget.row not in ratios:
            reason = notes.get(budget.row, "not measured")
            made.append(Line(budget.title, "-", "-", must, goal, "not measured", reason))
            continue
        taken = [round_.ratios[budget.row] for round_ in rounds if budget.row in round_.ratios]
        known = figures[budget.row]
        made.append(
            Line(
                budget.title.format(**known),
                _shown(budget, ratios[budget.row]),
                f"{_shown(budget, min(taken))} to {_shown(budget, max(taken))}"
                if len(taken) > 1
                else "one run",
                must,
                goal,
                _verdict(budget, ratios[budget.row]),
                budget.absolute.format(**known),
            )
        )
    return made


def _verdict(budget: Budget, measured: float) -> str:
    def holds(bar: float) -> bool:
        return measured >= bar if budget.least else measured <= bar

    if holds(budget.goal):
        return "met goal"
    return "met must" if holds(budget.must) else "missed"


def _bar(budget: Budget, bar: float) -> str:
    return f"{'>=' if budget.least else '<='} {_shown(budget, bar)}"


def _shown(budget: Budget, value: float) -> str:
    return f"{value:,.{budget.digits}f}{_unit(budget)}"


def _unit(budget: Budget) -> str:
    return "x" if budget.unit == "x" else f" {budget.unit}"


_COLORS = {"met goal": "green", "met must": "yellow", "missed": "red", "not measured": "dim"}
_HEADS = ("", "measured", "range", "must", "goal", "verdict", "absolute")


def show(console: Console, made: list[Line], rounds: list[Round]) -> None:
    table = Table(title="Engine, medians", show_lines=True)
    for head in _HEADS:
        # The titles may wrap; the figures should not.
        table.add_column(head, overflow="fold", no_wrap=head in ("measured", "must", "goal"))
    for line in made:
        cells = list(asdict(line).values())
        cells[5] = f"[{_COLORS[line.verdict]}]{line.verdict}[/]"
        table.add_row(*cells)
    console.print(table)
    beside = Table(title="Rounds")
    for head in _round_heads():
        beside.add_column(head, justify="right")
    for row in _round_rows(rounds):
        beside.add_row(*row)
    console.print(beside)


def markdown(made: list[Line], rounds: list[Round], conditions: dict[str, str]) -> str:
    parts = [f"- {name}: {value}" for name, value in conditions.items()]
    parts += ["", *_table(_HEADS, [list(asdict(line).values()) for line in made])]
    parts += ["", "Each round, with the raw commit rate and the machine's load beside it:", ""]
    parts += _table(_round_heads(), _round_rows(rounds))
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    """Replace the table between its markers."""
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: expected the lines {BEGIN!r} and {END!r} around the table")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def dump(path: Path, made: list[Line], rounds: list[Round], conditions: dict[str, str]) -> None:
    content = {
        "conditions": conditions,
        "lines": [asdict(line) for line in made],
        "rounds": [asdict(round_) for round_ in rounds],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _round_heads() -> tuple[str, ...]:
    return ("round", "raw commits/s", "load", *(budget.row for budget in BUDGETS))


def _round_rows(rounds: list[Round]) -> list[list[str]]:
    return [
        [
            str(number),
            f"{round_.commits_per_second:,.0f}",
            f"{round_.load:.1f}",
            *(
                _shown(budget, round_.ratios[budget.row]) if budget.row in round_.ratios else "-"
                for budget in BUDGETS
            ),
        ]
        for number, round_ in enumerate(rounds, start=1)
    ]


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
