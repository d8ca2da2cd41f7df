"""Series of signed documents, kept outside of the database: seals, and heads of user ledgers.

Each document names the one before it, so none can be left out or edited. A series is a file with
one line per document, or a directory with one file per document.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rfc8785

from helixqueue import __version__
from helixqueue.errors import Refused
from helixqueue.fence.receipt import time_text
from helixqueue.fence.signing import signature_faults, signed

if TYPE_CHECKING:
    from helixqueue.fence.signing import Signer

Document = dict[str, Any]


def document_id(document: Document) -> str:
    """The name by which the next document refers to this one: it covers the signature, too."""
    return hashlib.sha256(rfc8785.dumps(document)).hexdigest()


@dataclass(frozen=True, slots=True)
class SignedSeries:
    """One kind of series."""

    noun: str  # for one document
    purpose: str  # of its signatures
    command: str  # makes a document

    def sign(self, members: Document, previous: tuple[int, str] | None, signer: Signer) -> Document:
        """The next document, after the number and id of the one before it."""
        number, previous_id = previous or (0, None)
        header = {
            "format": self.purpose,
            "number": number + 1,
            "previous": previous_id,
            "sealed_at": time_text(datetime.now(UTC)),
            "release": __version__,
        }
        return signed(self.purpose, header | members, signer)

    def faults(
        self,
        document: Document,
        previous: Document | None,
        keys: Sequence[Signer],
        start: str | None = None,
    ) -> list[str]:
        """What shows that no known key made it, or that it does not follow the one before it.

        Without one before it, it is the first of its series or the one whose digest is `start`.
        """
        faults = signature_faults(self.purpose, document, keys)
        if faults:
            return faults
        place = (document["number"], document["previous"])
        if previous is None:
            if place == (1, None) or document_id(document) == start:
                return []
            return [f"the {self.noun}s before it are missing, and it is not the trusted start"]
        if place != (previous["number"] + 1, document_id(previous)):
            return [f"a {self.noun} between this one and the one before is missing or was edited"]
        return []

    def read(self, place: Path) -> list[Document]:
        """The documents of a file or directory, in their order; at least one."""
        documents = self._read(place) if place.exists() else []
        if not documents:
            raise Refused(
                f"expected {self.noun}s in {place}, got nothing; make one with {self.command}"
            )
        return documents

    def _read(self, place: Path) -> list[Document]:
        try:
            documents = [json.loads(text) for text in self._texts(place)]
        except (OSError, ValueError, RecursionError) as error:
            raise Refused(f"{place}: expected {self.noun}s as JSON, got {error}") from error
        for document in documents:
            if not isinstance(document, dict) or document.get("format") != self.purpose:
                raise Refused(
                    f"{place}: expected documents of format {self.purpose!r}, got another"
                )
        return documents

    def last(self, place: Path) -> Document | None:
        """The document that the next one of this place follows; None for the first."""
        documents = self._read(place) if place.exists() else []
        return documents[-1] if documents else None

    def add(self, place: Path, document: Document) -> Path:
        """Write a document beside the earlier ones; returns its file. Nothing is overwritten."""
        text = json.dumps(document, separators=(",", ":")) + "\n"
        in_directory = place.is_dir()
        file = place / f"{self.noun}-{document['number']:06}.json" if in_directory else place
        with file.open("x" if in_directory else "a", encoding="utf-8") as writer:
            writer.write(text)
        return file

    def _texts(self, place: Path) -> Iterator[str]:
        if place.is_dir():
            for file in sorted(place.glob(f"{self.noun}-*.json")):
                yield file.read_text(encoding="utf-8")
            return
        with place.open(encoding="utf-8") as lines:
            yield from (line for line in lines if line.strip())
