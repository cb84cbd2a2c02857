"""`tamis.text.SearchIndex`: documents as signatures, searched for words, the most useful first."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._files import save_whole
from tamis._types import FilePath
from tamis.collection import Names, at_most, opened, parse_budget, spilled, weights
from tamis.errors import FormatError
from tamis.planning.collection import text as planning
from tamis.planning.collection.curves import Floats, Ints, Segmented

Documents: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""Texts by name, all at once or one after the other."""

Tokenizer: TypeAlias = Callable[[str], Iterable[str]]
"""A text to its terms."""

_ENGLISH = """
    a about all also an and are as at be been but by can do for from had has have he her his
    how i if in into is it its may more most my no not of on one or other our out she so some
    such than that the their them then there these they this to up us was we were what when
    where which who will with would you your
"""

ENGLISH = frozenset(_ENGLISH.split())
"""Words that most English texts have and few questions are about."""


class _Memory(NamedTuple):
    """What answers a query, exchanged as a whole: one thread may ask while another allocates."""

    filters: _native.Filters
    sliced: _native.Sliced
    arrangement: planning.Arrangement
    rows: Ints


_WEIGHTS = 12  # bytes of a document's utility and place in the order


def words(text: str) -> list[str]:
    """Split a text into words: runs of letters, marks and digits, in lower case and NFKC.

    >>> words("Naïve Bayes, n-grams & LSTM_2")
    ['naïve', 'bayes', 'n', 'grams', 'lstm', '2']
    """
    return _native.words(unicodedata.normalize("NFKC", text).lower())


class SearchIndex:
    """Documents as signatures of their words, in a budget of memory that favours useful documents.

    A query asks for documents that have all of its terms, the most useful first. Full signatures
    are in a file, with the texts; of each, a prefix is in memory, as long as the budget and the
    utilities make best. No document that has the terms is ever missed. One that has not is found
    now and then, as `expected_fpr` says; checked against its text, it is left out again.

    >>> notes = {"sieve": "a drum sieve of fine mesh", "drum": "a drum kit", "mesh": "Mesh, drum!"}
    >>> index = SearchIndex.build(notes, utility={"sieve": 1, "drum": 3, "mesh": 2})
    >>> index.search("drum"), index.search("drum mesh", k=1)
    (['drum', 'mesh', 'sieve'], ['mesh'])

    References: Mersy, Wang, Sintos, Krishnan 2024; Goodwin et al. 2017.
    """

    def __init__(
        self, filters: _native.Filters, utility: Floats, tokenizer: Tokenizer | None
    ) -> None:
        told = filters.texts
        assert told is not None
        self._own, stops, self._kept = not told[0], told[1], told[2]
        self._filters = filters
        self._utility = utility
        self._tokenizer: Tokenizer = words if tokenizer is None else tokenizer
        self._stops = frozenset(stops.split("\n")) if stops else frozenset()
        self._budget: int | None = None
        self._texts_read = 0

    @classmethod
    def build(
        cls,
        documents: Documents,
        *,
        budget: int | str | None = None,
        utility: Mapping[str, float] | npt.ArrayLike | None = None,
        fpr: float = 1e-4,
        stop_words: Iterable[str] = (),
        tokenizer: Tokenizer | None = None,
        keep_texts: bool = True,
        path: FilePath | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Index texts by name, and keep in memory what the budget allows.

        ``documents`` may be an iterator: one text at a time is in memory. ``budget`` is in bytes
        or, as "64MB", in millions of them, and counts all that is in memory per document; without
        one, all bits are. ``fpr`` is the rate of the full signatures, per term. Terms are `words`,
        or what ``tokenizer`` makes of a text, without ``stop_words``. The file goes to ``path``, or
        is a temporary one; without ``keep_texts`` it has signatures only, to check nothing against.

        >>> index = SearchIndex.build({"a": "to be or not to be"}, stop_words=ENGLISH)
        >>> index.counts.tolist()
        [0]
        """
        stops = sorted(set(stop_words))
        wrong = next((word for word in stops if not word or "\n" in word), None)
        if wrong is not None:
            raise ValueError(f"stop_words has {wrong!r}; words without line breaks are wanted")
        told = (tokenizer is None, "\n".join(stops), keep_texts)
        folder = None if path is None else Path(os.path.realpath(os.fsdecode(path))).parent
        filters = spilled(folder, lambda spill: _native.Filters(spill, seed, key, told))
        index = cls(filters, np.zeros(0), tokenizer)
        index._add(documents, fpr, key)
        if path is not None:
            index._utility = weights(utility, index.names, index._utility)
            index.save(path)
            index._filters, _ = opened(path, key, texts=True)
        index.allocate(budget=budget, utility=utility)
        return index

    @classmethod
    def open(
        cls,
        path: FilePath,
        *,
        budget: int | str | None = None,
        utility: Mapping[str, float] | npt.ArrayLike | None = None,
        tokenizer: Tokenizer | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Open a file that `build` or `save` wrote, and read what the budget allows.

        What is read is checked, piece by piece; `FormatError` if it is damaged. Stop words are of
        the file, and utilities too unless given; a tokenizer has to be given again.
        """
        filters, saved = opened(path, key, texts=True)
        told = filters.texts
        if told is None or told[0] != (tokenizer is None):
            given = "none" if tokenizer is None else "one"
            raise ValueError(
                f"tokenizer: {given} is given; the one that the index was built with is wanted"
            )
        index = cls(filters, saved, tokenizer)
        try:
            index.allocate(budget=budget, utility=utility)
        except FormatError as error:
            raise FormatError(f"{os.fsdecode(path)}: {error}") from None
        return index

    def save(self, path: FilePath) -> None:
        """Write full signatures, texts and utilities to a file: whole, or not at all."""
        filters, utility = self._filters, self._utility
        save_whole(path, lambda descriptor: filters.write(descriptor, utility))

    def search(self, query: str, k: int | None = 10, *, verify: bool | None = None) -> list[str]:
        """Name the ``k`` most useful documents that have all terms of the query; None: all.

        With ``verify``, and by default where texts are kept, each is checked against its text, so
        that exactly those are named which have the terms. Without it, some may not have them all.
        A query without terms is met by every document.
        """
        wanted, memory = set(self._terms(query)), self._memory
        limit = at_most("k", k)
        if verify is None:
            verify = self._kept
        elif verify and not self._kept:
            raise ValueError("verify is True; the index has no texts to check (keep_texts)")
        if not wanted:
            ids = memory.arrangement.order[:limit].tolist()
        elif verify:
            ids = self._verified(memory, wanted, limit)
        else:
            ranks = memory.sliced.search(list(wanted), limit)
            ids = memory.arrangement.order[ranks].tolist()
        return [memory.filters.name(id) for id in ids]

    def text(self, name: str) -> str:
        """Return the text of a document."""
        text = self._filters.text(self._id(name))
        if text is None:
            raise ValueError("the index has no texts (keep_texts)")
        return text

    def append(
        self,
        name: str,
        text: str,
        *,
        utility: float = 1.0,
        fpr: float = 1e-4,
        key: bytes | None = None,
    ) -> None:
        """Add a document and allocate anew; `save` writes it to a file. See `extend` for many."""
        self.extend([(name, text)], utility=[utility], fpr=fpr, key=key)

    def extend(
        self,
        documents: Documents,
        *,
        utility: npt.ArrayLike | None = None,
        fpr: float = 1e-4,
        key: bytes | None = None,
    ) -> None:
        """Add documents and allocate anew; ``utility`` is one number for each, 1 without it.

        An index with a secret key takes it here too, to hash the new words.

        >>> index = SearchIndex.build({"a": "fine mesh"})
        >>> index.extend({"b": "coarse mesh", "c": "no sieve"}, utility=[2, 1])
        >>> index.search("mesh")
        ['b', 'a']
        """
        before = len(self)
        self._add(documents, fpr, key)
        if utility is not None:
            added = np.asarray(utility, np.float64)
            if added.shape != (len(self) - before,):
                raise ValueError(
                    f"utility is of shape {added.shape}; one number per document is wanted"
                )
            self._utility = weights(
                np.concatenate([self._utility[:before], added]), self.names, self._utility
            )
        self.allocate(budget=self._budget)

    def drop(self, name: str) -> None:
        """Remove a document and allocate anew."""
        id = self._id(name)
        self._filters = self._filters.without([id])
        self._utility = np.delete(self._utility, id)
        self.allocate(budget=self._budget)

    def allocate(
        self,
        *,
        budget: int | str | None = None,
        utility: Mapping[str, float] | npt.ArrayLike | None = None,
    ) -> None:
        """Keep other prefixes: for another budget (None: all bits), with other utilities.

        Nothing but the file is read, and nothing in it changes.

        >>> index = SearchIndex.build({str(i): f"note {i} of many" for i in range(1000)})
        >>> full = index.size_in_bytes
        >>> index.allocate(budget=full - 5000, utility=range(1000))
        >>> bool(index.size_in_bytes <= full - 5000), index.search("note 7", 1)
        (True, ['7'])
        """
        chosen = weights(utility, self.names, self._utility)
        size = None if budget is None else parse_budget(budget)
        _, hashes, bits, *_, counts = self._filters.tables()
        arrangement = planning.arrange(counts, bits, hashes.astype(np.int64), chosen)
        if size is None:
            rows = arrangement.curve.length * arrangement.curve.hashes
        else:
            least = self._overhead(arrangement)
            if size < least:
                raise ValueError(
                    f"budget is {size} bytes; names and sizes of {len(self)} documents take {least}"
                )
            rows = arrangement.allocate(8 * (size - least))
        sliced = self._filters.sliced(
            arrangement.documents, rows.astype(np.uint32), arrangement.ids, arrangement.ranks
        )
        self._memory = _Memory(self._filters, sliced, arrangement, rows)
        self._utility, self._budget = chosen, size

    @property
    def names(self) -> Names:
        """The names by number; an array of numbers gives an array of names."""
        return Names(self._filters)

    @property
    def utility(self) -> Floats:
        """How useful each document is, relative to the others."""
        return self._utility.copy()

    @property
    def budget(self) -> int | None:
        """The budget in bytes, None where there is none."""
        return self._budget

    @property
    def counts(self) -> Ints:
        """How many distinct terms each document has."""
        return self._filters.tables()[6]

    @property
    def kept(self) -> Ints:
        """How many bits of each signature are in memory."""
        kept = np.zeros(len(self), np.int64)
        arrangement = self._memory.arrangement
        kept[arrangement.ids] = np.repeat(self._memory.rows, arrangement.documents)
        return kept

    @property
    def full(self) -> Ints:
        """How many bits each full signature has."""
        return self._filters.tables()[2]

    @property
    def fprs(self) -> Floats:
        """How likely each document is expected to pass for one with a term that it has not."""
        _, hashes, bits, *_, counts = self._filters.tables()
        return Segmented(bits, hashes.astype(np.int64), counts).rate(self.kept)

    @property
    def expected_fpr(self) -> float:
        """The expected rate per term, weighted by utility; for t absent terms its t-th power."""
        total = float(self._utility.sum())
        return float(self._utility @ self.fprs) / total if total > 0 else 0.0

    @property
    def size_in_bytes(self) -> int:
        """What is in memory: the prefixes, and all that is kept per document, names included."""
        return self._overhead(self._memory.arrangement) + (self.size_in_bits + 7) // 8

    @property
    def size_in_bits(self) -> int:
        """The bits of the prefixes alone."""
        return self._memory.sliced.bits

    @property
    def stop_words(self) -> frozenset[str]:
        """Words that are left out, of documents and of queries."""
        return self._stops

    @property
    def texts_read(self) -> int:
        """How many texts were read to check them."""
        return self._texts_read

    @property
    def seed(self) -> int | None:
        """The seed of the hash, or None where a secret key took its place."""
        return self._filters.seed

    def __len__(self) -> int:
        return len(self._filters)

    def __repr__(self) -> str:
        return f"<tamis.text.SearchIndex: {len(self):,} documents, {self.size_in_bytes:,} bytes>"

    def _overhead(self, arrangement: planning.Arrangement) -> int:
        own = self._filters.size_in_bytes(len(arrangement.documents))
        return own + _WEIGHTS * len(self)

    def _id(self, name: str) -> int:
        id = self._filters.find(name)
        if id is None:
            raise KeyError(name)
        return id

    def _terms(self, text: str) -> list[str]:
        if not isinstance(text, str):
            kind = type(text).__name__
            raise TypeError(f"text is {text!r} (of type {kind}); a str is wanted")
        terms = list(self._tokenizer(text))
        return [term for term in terms if term not in self._stops] if self._stops else terms

    def _add(self, documents: Documents, fpr: float, key: bytes | None) -> None:
        known = set(self.names)
        pairs = documents.items() if isinstance(documents, Mapping) else documents
        for name, text in pairs:
            if not isinstance(name, str):
                kind = type(name).__name__
                raise TypeError(f"name is {name!r} (of type {kind}); a str is wanted")
            if name in known:
                raise ValueError(f"name is {name!r}; the index has a document of that name")
            known.add(name)
            distinct = _native.Distinct(self._terms(text), self.seed or 0, key)
            length, segments = planning.signature(len(distinct), fpr)
            shape = "segmented" if len(distinct) else "empty"
            full = _native.Full((shape, segments, length * segments, ()), distinct)
            self._filters.add(name, full, text)
        grown = len(self._filters) - len(self._utility)
        self._utility = np.concatenate([self._utility, np.ones(grown)])

    def _verified(self, memory: _Memory, wanted: set[str], limit: int) -> list[int]:
        """Search for more and more candidates until enough of them have the terms."""
        found: list[int] = []
        terms, asked, more = list(wanted), 0, limit
        while len(found) < limit:
            ranks = memory.sliced.search(terms, more)
            for id in memory.arrangement.order[ranks[asked:]].tolist():
                self._texts_read += 1
                if wanted.issubset(self._terms(memory.filters.text(id) or "")):
                    found.append(id)
                    if len(found) == limit:
                        break
            if len(ranks) < more:
                break
            asked, more = more, 4 * more
        return found
