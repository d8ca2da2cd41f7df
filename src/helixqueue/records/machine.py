"""The machine of a ledger: kinds of events, and the arrows between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from helixqueue.errors import Refused

KINDS_MAX: Final = 200
KIND_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9_.-]{0,62}$"
_KIND: Final = re.compile(KIND_PATTERN)


class Machine:
    """The kinds that may follow each kind; a kind without successors is terminal.

    ```python
    Machine({"REQUESTED": ["CONFIRMED", "CANCELLED"], "CONFIRMED": ["LAUNCHED"]})
    ```

    A kind that is only a successor is terminal. `initial` lists the kinds that may be the first of
    an entity; by default those that no arrow reaches. Raises `Refused` for a machine with a kind
    that no entity can reach, or in which no entity can end.
    """

    def __init__(
        self, arrows: Mapping[str, Iterable[str]], *, initial: Iterable[str] | None = None
    ) -> None:
        if not isinstance(arrows, Mapping):
            raise Refused(f"expected a mapping of kinds to successors, got {type(arrows).__name__}")
        self.arrows: dict[str, tuple[str, ...]] = {
            kind: _kinds(kind, successors) for kind, successors in arrows.items()
        }
        for successors in list(self.arrows.values()):
            for kind in successors:
                self.arrows.setdefault(kind, ())
        for kind in self.arrows:
            if not isinstance(kind, str) or _KIND.fullmatch(kind) is None:
                raise Refused(
                    "expected a kind of 1 to 63 letters, digits, '_', '.' or '-', beginning with a "
                    f"letter; got {ascii(kind)[:80]}"
                )
        if not 1 <= len(self.arrows) <= KINDS_MAX:
            raise Refused(f"expected 1 to {KINDS_MAX} kinds, got {len(self.arrows)}")
        self.initial = self._initial(initial)
        self._demand_ends()

    @property
    def terminal(self) -> tuple[str, ...]:
        return tuple(kind for kind, successors in self.arrows.items() if not successors)

    def _initial(self, initial: Iterable[str] | None) -> tuple[str, ...]:
        reached = {kind for successors in self.arrows.values() for kind in successors}
        if initial is None:
            kinds = tuple(kind for kind in self.arrows if kind not in reached)
        else:
            kinds = _kinds("initial", initial)
        unknown = [kind for kind in kinds if kind not in self.arrows]
        if unknown or not kinds:
            raise Refused(
                f"expected initial kinds of the machine, got {unknown or 'none'}; every kind is "
                "the successor of another one: name the first with initial=[...]"
            )
        return kinds

    def _demand_ends(self) -> None:
        """Every kind is reachable from an initial one, and reaches a terminal one."""
        if unreachable := self._unreachable(self.initial, self.arrows):
            raise Refused(f"no entity can reach {', '.join(unreachable)} from {self.initial}")
        if not self.terminal:
            raise Refused("expected at least one terminal kind (without successors), got none")
        backwards: dict[str, list[str]] = {kind: [] for kind in self.arrows}
        for kind, successors in self.arrows.items():
            for successor in successors:
                backwards[successor].append(kind)
        if endless := self._unreachable(self.terminal, backwards):
            raise Refused(f"no entity can end after {', '.join(endless)}: no terminal kind follows")

    def _unreachable(self, start: Iterable[str], arrows: Mapping[str, Iterable[str]]) -> list[str]:
        found, todo = set(start), list(start)
        while todo:
            for kind in arrows[todo.pop()]:
                if kind not in found:
                    found.add(kind)
                    todo.append(kind)
        return [kind for kind in self.arrows if kind not in found]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Machine):
            return NotImplemented
        return self.arrows == other.arrows and self.initial == other.initial

    def __hash__(self) -> int:
        return hash((tuple(self.arrows.items()), self.initial))

    def __repr__(self) -> str:
        return f"Machine({ {kind: list(after) for kind, after in self.arrows.items()} })"


def _kinds(name: str, kinds: Iterable[str]) -> tuple[str, ...]:
    if isinstance(kinds, str):
        raise Refused(f"{name}: expected a list of kinds, got the text {kinds!r}")
    return tuple(dict.fromkeys(kinds))
