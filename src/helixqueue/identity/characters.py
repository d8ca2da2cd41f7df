"""Facts about single code points that the profiles judge by.

Everything here holds for Unicode 14.0 and does not move with the interpreter: names,
decompositions and the categories Cc, Cs, Co are frozen by Unicode's stability policy, and code
points that came later are refused before their other properties are asked.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from helixqueue.identity.unicode14 import is_assigned

# The property White_Space, spelled out: `str.isspace` also counts U+001C..U+001F, which are
# controls; one of them (U+001F) joins the parts of an identity.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

_BIDI_CONTROLS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)

# Default_Ignorable_Code_Point beyond category Cf: letters and marks that draw nothing.
_BLANK_LETTERS_AND_MARKS = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0"
).union(map(chr, range(0xFE00, 0xFE10)), map(chr, range(0xE0100, 0xE01F0)))

# Hyphens, dashes and the minus sign: word processors put them in place of "-", and on a label they
# look the same. Most have no compatibility decomposition, so they need their own list.
_DASHES = frozenset("\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\ufe58\ufe63")

_BY_CATEGORY = {
    "Cc": "control",
    "Zl": "control",  # a line break in all but category
    "Zp": "control",
    "Cs": "surrogate",
    "Co": "private-use",
}


@lru_cache(maxsize=4096)
def flaw(char: str) -> str | None:
    """Name the reason why no profile takes this code point, or None."""
    code_point = ord(char)
    if reason := _BY_CATEGORY.get(unicodedata.category(char)):
        return reason
    if code_point & 0xFFFE == 0xFFFE or 0xFDD0 <= code_point <= 0xFDEF:
        return "noncharacter"
    if not is_assigned(code_point):
        return "unassigned"
    if char in _BIDI_CONTROLS:
        return "bidi-control"
    if unicodedata.category(char) == "Cf" or char in _BLANK_LETTERS_AND_MARKS:
        return "invisible"
    return None


@lru_cache(maxsize=4096)
def lab_flaw(char: str) -> str | None:
    """Name the reason why `lab-id-v1` does not take this (width-mapped) code point, or None."""
    if reason := flaw(char):
        return reason
    if char in WHITE_SPACE:
        return "whitespace"
    if char in _DASHES:
        return "dash"
    # Through NFD: U+0385 itself is plain, but its twin U+00A8 U+0301 begins with one that is not.
    if any(_is_compatibility(each) for each in unicodedata.normalize("NFD", char)):
        return "compatibility"
    return None


def _is_compatibility(char: str) -> bool:
    return unicodedata.decomposition(char).startswith("<")


def _width_map() -> dict[int, str]:
    """Full-width and half-width forms to their plain ones, one code point to one."""
    pairs = (
        (point, unicodedata.decomposition(chr(point)).split()) for point in range(0xFF01, 0xFFEF)
    )
    return {
        point: chr(int(fields[1], 16))
        for point, fields in pairs
        if fields and fields[0] in ("<wide>", "<narrow>")
    }


WIDTH_MAP = _width_map()


def is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M")


# The standard library has no Script property, but a letter's name begins with its script, and
# names never change. These are the names that begin with something else; None is Common.
_SCRIPT_OF_FIRST_WORD = {
    "CARON": None,
    "MASU": None,
    "MODIFIER": None,
    "VEDIC": None,
    "VERTICAL": None,
    "KATAKANA-HIRAGANA": None,
    "CJK": "HAN",
    "IDEOGRAPHIC": "HAN",
    "HENTAIGANA": "HIRAGANA",
    "ROMAN": "LATIN",
    "TURNED": "LATIN",
}


@lru_cache(maxsize=4096)
def script(char: str) -> str | None:
    """Name the script of a letter; None for anything that goes with every script."""
    letter = unicodedata.normalize("NFC", char)[0]  # the Kelvin sign is a K
    if not unicodedata.category(letter).startswith("L"):
        return None
    # Older Pythons have no names for Tangut ideographs; every other letter is named.
    words = unicodedata.name(letter, "TANGUT IDEOGRAPH").split(" ")
    if words[0] == "OLD":  # Old Italic and Old Turkic are two scripts
        return " ".join(words[:2])
    return _SCRIPT_OF_FIRST_WORD.get(words[0], words[0])


def digit_system(char: str) -> int | None:
    """Identify the decimal digits a digit belongs to by their zero; None for anything else."""
    value = unicodedata.decimal(char, None)
    return None if value is None else ord(char) - value


def escaped(text: str) -> str:
    r"""Spell everything but printable ASCII as `\u{...}`, so that look-alikes show in a log."""
    return "".join(
        char if " " <= char <= "~" and char != "\\" else f"\\u{{{ord(char):x}}}" for char in text
    )


def described(char: str) -> str:
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()
