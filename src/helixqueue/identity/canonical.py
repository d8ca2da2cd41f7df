"""One spelling per identity: the versioned profiles, and the reasons they refuse with.

A profile either returns the canonical form or refuses and says which code point, where, why and
what to write instead. It never repairs by guessing: what is not a matter of encoding (trim, NFC,
in `lab-id-v1` also width) is a suggestion in the refusal, and a person decides. The raw spelling
is kept beside the canonical one, which alone makes the key.

A profile's rules never change once released: a stricter or laxer rule is a new profile, because
the canonical forms of yesterday are in the keys of yesterday.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from helixqueue.errors import InvalidIdentity
from helixqueue.identity.characters import (
    WHITE_SPACE,
    WIDTH_MAP,
    described,
    digit_system,
    escaped,
    flaw,
    is_mark,
    lab_flaw,
    script,
)

# Joins the parts in `text`. Every profile refuses controls, so no part can hold it and the join
# cannot be forged; it composes with nothing, so the join of NFC parts is NFC.
PART_SEPARATOR = "\x1f"

MAX_PARTS = 16
MAX_PART_BYTES = 255  # canonical, in UTF-8
# Room for the longest raw spelling of a legal part: NFD and full-width forms take three times the
# bytes of what they stand for. The rest is padding that trimming removes.
MAX_RAW_PART_BYTES = 1024
# All parts together: a B-tree entry ends at 2704 bytes, and `text` must stay fit for an index.
MAX_TEXT_BYTES = 2048
MAX_MARKS_IN_A_ROW = 3
MAX_SHOWN_CHARS = 80  # of an identity inside an error message


@dataclass(frozen=True, slots=True)
class Identity:
    """A business identifier: as it came, as it is compared, and by which rules."""

    raw: tuple[str, ...]
    canonical: tuple[str, ...]
    profile: str

    @property
    def changed(self) -> bool:
        """Whether the canonical form differs from what came: a twin spelling is possible."""
        return self.raw != self.canonical

    @property
    def text(self) -> str:
        """The canonical parts as the database stores them in the column `identity`."""
        return PART_SEPARATOR.join(self.canonical)

    @property
    def raw_text(self) -> str:
        return PART_SEPARATOR.join(self.raw)


class _Flaw(NamedTuple):
    code: str
    offset: int | None = None  # in the raw part, in code points


_Whole = Callable[[str], int | None]  # where the text breaks the rule, if it does


@dataclass(frozen=True, slots=True)
class _Profile:
    name: str
    max_chars: int
    spaces: bool  # whether ASCII spaces may stand inside
    width_map: dict[int, str]
    char_flaw: Callable[[str], str | None]
    whole: tuple[tuple[str, _Whole], ...]
    space_becomes: str  # in suggestions


def canonicalize(raw: str | tuple[str, ...], profile: str = "text-v1") -> Identity:
    """Bring an identity to its canonical form, or raise `InvalidIdentity`."""
    rules = _profile(profile)
    parts = (raw,) if isinstance(raw, str) else _checked_parts(raw)
    canonical = tuple([_canonical_part(part, rules, index) for index, part in enumerate(parts)])
    if len(canonical) > 1:
        _check_total(canonical)
    if type(raw) is not str:
        # Not a subclass such as StrEnum: database drivers adapt those by their own rules.
        parts = tuple("".join(part) for part in parts)
    return Identity(parts, canonical, profile)


def identity_texts(raw: str | tuple[str, ...], profile: str) -> tuple[str, str | None]:
    """The canonical text of an identity, and its raw text if that is another one.

    The same rules as `canonicalize`, without the object: a bulk submit needs thousands of these.
    """
    rules = PROFILES.get(profile)
    if type(raw) is str and rules is not None and _is_plain(raw, rules):
        return raw, None
    identity = canonicalize(raw, profile)
    return identity.text, identity.raw_text if identity.changed else None


def canonical_revision(raw: str | None) -> str:
    """Bring a revision to the form that goes into the key: "" for None, else by `text-v1`.

    Two spellings of one revision would otherwise be two batches.
    """
    if raw is None:
        return ""
    if not isinstance(raw, str) or not raw:
        raise InvalidIdentity(
            f"expected a revision as a string such as '2', or None for no revision; got {raw!r}. "
            "An empty string would mean None without saying so",
            code="revision",
        )
    return canonicalize(raw).text


def _profile(name: str) -> _Profile:
    try:
        return PROFILES[name]
    except KeyError:
        raise InvalidIdentity(
            f"expected a profile, one of {', '.join(sorted(PROFILES))}; got {name!r}",
            code="unknown-profile",
        ) from None


def _checked_parts(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, tuple):
        raise InvalidIdentity(
            f"expected an identity as a string or a tuple of strings; got {type(raw).__name__}. "
            "Decode bytes, format numbers, and give several parts as a tuple",
            code="type",
        )
    if not 1 <= len(raw) <= MAX_PARTS:
        raise InvalidIdentity(
            f"expected 1 to {MAX_PARTS} parts in an identity; got {len(raw)}", code="parts"
        )
    for index, part in enumerate(raw):
        if not isinstance(part, str):
            raise InvalidIdentity(
                f"expected a string in every part of an identity; got {type(part).__name__} in "
                f"part {index}. Format it yourself, so that 1 and '1' are one decision",
                code="type",
                part=index,
            )
    return raw


def _check_total(canonical: tuple[str, ...]) -> None:
    size = len(PART_SEPARATOR.join(canonical).encode())
    if size > MAX_TEXT_BYTES:
        raise InvalidIdentity(
            f"expected at most {MAX_TEXT_BYTES} bytes of UTF-8 in all parts together; got {size}. "
            "Shorten the parts, or use a digest of the longest",
            code="too-long",
        )


def _canonical_part(raw: str, rules: _Profile, index: int) -> str:
    if _is_plain(raw, rules):
        return raw
    raw = "".join(raw)
    result = _attempt(raw, rules)
    if isinstance(result, _Flaw):
        raise _refusal(raw, result, rules, index)
    # Spotify's accounts were taken over through a canonical form that had another one (2013).
    # No input is known to get here; one that does must not become a key. What came out as it went
    # in has been shown to be its own canonical form already.
    if result != raw and _attempt(result, rules) != result:
        raise _refusal(raw, _Flaw("unstable"), rules, index)
    return result


def _is_plain(raw: str, rules: _Profile) -> bool:
    """Printable ASCII that every step would leave as it is: nearly all identities there are."""
    return (
        type(raw) is str
        and 0 < len(raw) <= rules.max_chars
        and raw.isascii()
        and raw.isprintable()
        and (raw[0] != " " != raw[-1] if rules.spaces else " " not in raw)
    )


def _attempt(raw: str, rules: _Profile) -> str | _Flaw:
    """Run every step of the profile: the canonical form, or the first flaw."""
    if len(raw) > MAX_RAW_PART_BYTES:
        return _Flaw("too-long")
    text = raw.strip(WHITE_SPACE)
    if not text:
        return _Flaw("empty")
    start = raw.index(text)
    if rules.width_map:
        text = text.translate(rules.width_map)  # one code point to one: offsets stay true
    if any(map(rules.char_flaw, text)):
        return _first_flaw(text, start, rules)
    canonical = unicodedata.normalize("NFC", text)
    if _is_too_long(raw, canonical, rules):
        return _Flaw("too-long")
    for code, broken_at in rules.whole:
        if (at := broken_at(text)) is not None:
            return _Flaw(code, start + at)
    return canonical


def _first_flaw(text: str, start: int, rules: _Profile) -> _Flaw:
    flaws = ((rules.char_flaw(char), offset) for offset, char in enumerate(text, start))
    return next(_Flaw(code, offset) for code, offset in flaws if code)


def _is_too_long(raw: str, canonical: str, rules: _Profile) -> bool:
    # Safe to encode: surrogates are refused by now.
    return (
        len(canonical) > rules.max_chars
        or len(canonical.encode()) > MAX_PART_BYTES
        or len(raw.encode()) > MAX_RAW_PART_BYTES
    )


def _leading_mark(text: str) -> int | None:
    return 0 if is_mark(text[0]) else None


def _stacked_marks(text: str) -> int | None:
    """Judge the NFC form, so that twins get one answer; point to where the raw text crosses."""
    if not _has_stacked_marks(text):
        return None
    return next(end for end in range(len(text)) if _has_stacked_marks(text[: end + 1]))


def _has_stacked_marks(text: str) -> bool:
    runs = groupby(unicodedata.normalize("NFC", text), is_mark)
    return any(marks and len(list(run)) > MAX_MARKS_IN_A_ROW for marks, run in runs)


# Scripts that people write together. Greek beside Latin is for labs (`Sämple-Ω-001`); the others
# are the combinations of UTS #39, "highly restrictive".
_TOGETHER = (
    frozenset({"LATIN", "GREEK"}),
    frozenset({"LATIN", "HAN", "HIRAGANA", "KATAKANA"}),
    frozenset({"LATIN", "HAN", "BOPOMOFO"}),
    frozenset({"LATIN", "HAN", "HANGUL"}),
)


def _mixed_scripts(text: str) -> int | None:
    """Point to the stranger: the first letter of the rarest script, of the later one in a tie."""
    offsets: dict[str, list[int]] = {}
    for offset, char in enumerate(text):
        if name := script(char):
            offsets.setdefault(name, []).append(offset)
    if len(offsets) <= 1 or any(offsets.keys() <= together for together in _TOGETHER):
        return None
    return min(offsets.values(), key=lambda at: (len(at), -at[0]))[0]


def _mixed_digits(text: str) -> int | None:
    """Two digit systems in one number: U+0661 and U+06F1 are both "1" and look the same."""
    first: int | None = None
    for offset, char in enumerate(text):
        system = digit_system(char)
        if system is None:
            continue
        if first is None:
            first = system
        elif system != first:
            return offset
    return None


PROFILES = {
    profile.name: profile
    for profile in (
        _Profile(
            name="text-v1",
            max_chars=MAX_PART_BYTES,  # so that bytes alone decide
            spaces=True,
            width_map={},
            char_flaw=flaw,
            whole=(),
            space_becomes=" ",
        ),
        _Profile(
            name="lab-id-v1",
            max_chars=128,
            spaces=False,
            width_map=WIDTH_MAP,
            char_flaw=lab_flaw,
            whole=(
                ("leading-mark", _leading_mark),
                ("stacked-marks", _stacked_marks),
                ("mixed-scripts", _mixed_scripts),
                ("mixed-digits", _mixed_digits),
            ),
            space_becomes="-",
        ),
    )
}

# What was expected, per reason; the message adds what came and, where there is one, the remedy.
_EXPECTED = {
    "empty": "at least one visible character",
    "too-long": f"at most {{max_chars}} characters and {MAX_PART_BYTES} bytes of UTF-8 "
    f"(and at most {MAX_RAW_PART_BYTES} bytes before trimming)",
    "control": "no control characters or line breaks",
    "surrogate": "well-formed Unicode without lone surrogates",
    "private-use": "characters whose meaning is public",
    "noncharacter": "characters, not Unicode noncharacters",
    "unassigned": "characters of Unicode 14.0, the oldest version a deployment may run",
    "bidi-control": "no characters that turn the reading direction",
    "invisible": "no characters that cannot be seen",
    "whitespace": "no spaces inside",
    "dash": "'-' (U+002D) as the only dash",
    "compatibility": "the plain form of each character",
    "leading-mark": "a base character before the first combining mark",
    "stacked-marks": f"at most {MAX_MARKS_IN_A_ROW} combining marks in a row",
    "mixed-scripts": "letters of one script (Greek may stand beside Latin, kanji beside kana)",
    "mixed-digits": "digits of one script",
    "unstable": "a canonical form that is its own canonical form",
}


def _refusal(raw: str, found: _Flaw, rules: _Profile, index: int) -> InvalidIdentity:
    char = None if found.offset is None else raw[found.offset]
    got = (
        f"{len(raw)} characters" if char is None else f"{described(char)} at offset {found.offset}"
    )
    suggestion = _suggestion(raw, rules)
    remedy = "" if suggestion is None else f"; did you mean '{escaped(suggestion)}'?"
    expected = _EXPECTED[found.code].format(max_chars=rules.max_chars)
    return InvalidIdentity(
        f"identity '{_shown(raw)}' breaks {rules.name} ({found.code}): expected {expected}; "
        f"got {got}{remedy}",
        code=found.code,
        code_point=None if char is None else ord(char),
        offset=found.offset,
        suggestion=suggestion,
        part=index,
    )


def _shown(raw: str) -> str:
    cut = raw[:MAX_SHOWN_CHARS]
    return escaped(cut) + ("..." if len(cut) < len(raw) else "")


def _suggestion(raw: str, rules: _Profile) -> str | None:
    """Offer the nearest good spelling, if each flaw has one and the whole then passes."""
    text = raw.strip(WHITE_SPACE).translate(rules.width_map)
    if len(text) > MAX_RAW_PART_BYTES:
        return None
    attempt = _attempt("".join(_mended(char, rules) for char in text), rules)
    return None if isinstance(attempt, _Flaw) else attempt


def _mended(char: str, rules: _Profile) -> str:
    code = rules.char_flaw(char)
    if char in WHITE_SPACE and code is not None:
        return rules.space_becomes
    if code in ("control", "bidi-control", "invisible"):
        return ""
    if code == "dash":
        return "-"
    if code == "compatibility":
        return unicodedata.normalize("NFKC", char)
    return char
