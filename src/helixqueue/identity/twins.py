"""Twins: different spellings that a person would take for one identity.

Twins are reported, never merged. A skeleton makes `S-01` and `S-O1` equal, and a lab may well have
both tubes; it also changes with every Unicode release. So nothing here goes into a key.

The look-alike data comes with the extra `helixqueue[twins]`. It lists pairs without saying which
side is the prototype of UTS #39, and that is recovered here: a source has one partner, a prototype
usually several. Where both have one, the smaller code point stands for the two. A skeleton is
therefore good for comparing with other skeletons of the same release, and for nothing else.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from helixqueue.errors import NotInstalled
from helixqueue.identity.canonical import PART_SEPARATOR

if TYPE_CHECKING:
    from helixqueue.identity.canonical import Identity

Kind = Literal["spelling", "case", "look-alike"]

_LEFT_TO_RIGHT_MARK = "\u200e"  # the data wraps right-to-left characters in it
_MAX_ROUNDS = 4  # a prototype may hold a character that has a prototype; two rounds are known


@dataclass(frozen=True, slots=True)
class TwinGroup:
    """Identities that are twins of each other, in the order they came.

    `spelling`: one canonical form, several raw ones; they are one batch.
    `case`, `look-alike`: several canonical forms; they are several batches, perhaps by mistake.
    """

    kind: Kind
    key: str
    members: tuple[Identity, ...]


def find_twins(identities: Iterable[Identity]) -> list[TwinGroup]:
    """Group identities by how they can be mistaken for one another; exact repeats do not count."""
    distinct = list(dict.fromkeys(identities))
    per_canonical = list({identity.text: identity for identity in reversed(distinct)}.values())[
        ::-1
    ]
    return [
        *_groups("spelling", distinct, lambda identity: identity.text),
        *_groups("case", per_canonical, lambda identity: casefold_key(identity.text)),
        *_groups("look-alike", per_canonical, lambda identity: skeleton(identity.text)),
    ]


def casefold_key(text: str) -> str:
    """Fold case so that canonically equal texts that differ in case only give one key."""
    folded = unicodedata.normalize("NFD", text).casefold()
    return unicodedata.normalize("NFC", folded)


def is_placeholder(text: str, placeholders: Collection[str]) -> bool:
    """Whether every part of a canonical identity is one of the placeholders, in any case.

    `placeholders` were folded by `casefold_key`. The engine decides; a client knows it earlier.
    """
    for part in text.split(PART_SEPARATOR):
        if (part.lower() if part.isascii() else casefold_key(part)) not in placeholders:
            return False
    return True


def skeleton(text: str) -> str:
    """Map each character to the one it looks like (UTS #39); equal skeletons look alike."""
    prototypes = _prototypes()
    for _ in range(_MAX_ROUNDS):
        mapped = unicodedata.normalize("NFD", text).translate(prototypes)
        mapped = unicodedata.normalize("NFD", mapped)
        if mapped == text:
            break
        text = mapped
    return text


def _groups(
    kind: Kind, identities: list[Identity], key_of: Callable[[Identity], str]
) -> list[TwinGroup]:
    members: dict[str, list[Identity]] = {}
    for identity in identities:
        members.setdefault(key_of(identity), []).append(identity)
    return [TwinGroup(kind, key, tuple(group)) for key, group in members.items() if len(group) > 1]


@cache
def _prototypes() -> dict[int, str]:
    partners = _partners()
    prototypes = {}
    for char, others in partners.items():
        if len(char) == 1 and len(others) == 1:
            (other,) = others
            if _stands_for(other, char, partners):
                prototypes[ord(char)] = other
    return prototypes


def _stands_for(other: str, char: str, partners: dict[str, set[str]]) -> bool:
    """Say whether `other`, the only partner of `char`, is the prototype of the two."""
    return len(other) > 1 or len(partners[other]) > 1 or other < char


def _partners() -> dict[str, set[str]]:
    try:
        # Here and not above: the extra is optional, and its data takes a while to load.
        confusables = import_module("confusable_homoglyphs.confusables")
    except ImportError as error:
        raise NotInstalled("confusable_homoglyphs", "twins") from error
    partners: dict[str, set[str]] = {}
    for char, others in confusables.confusables_data.items():
        names = partners.setdefault(char.strip(_LEFT_TO_RIGHT_MARK), set())
        names.update(other["c"].strip(_LEFT_TO_RIGHT_MARK) for other in others)
    return partners
