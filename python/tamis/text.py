"""`tamis.text.SearchIndex`: search documents by their words, the most useful first."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import one_of, parse_budget
from tamis._objects import storage_of
from tamis._ranges import CACHE
from tamis._types import FilePath
from tamis.collection import storage
from tamis.collection.allocation_inputs import as_weights, extend_utility, read_utility
from tamis.collection.origin import Origin, saved_origin
from tamis.collection.prefixes import load_sliced, rate_curve, sliced_overhead
from tamis.collection.storage import Names
from tamis.planning.collection import sliced as planning
from tamis.planning.collection.allocation import PREFIX_KINDS, weighted_rate
from tamis.planning.collection.curves import Floats, Ints, Mixed, Segmented, Weights
from tamis.planning.collection.prices import optimal

Documents: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""Texts by name, in a mapping or an iterable of pairs."""

Tokenizer: TypeAlias = Callable[[str], Iterable[str]]
"""Splits a text into terms."""

SignatureKind: TypeAlias = Literal["sliced", "ribbon"]
"""Signatures: bit-sliced Bloom filters, or separate ribbons."""

_RIBBON = 1 + PREFIX_KINDS.index("ribbon")  # the number of the kind in a file

_ENGLISH = """
    a about all also an and are as at be been but by can do for from had has have he her his
    how i if in into is it its may more most my no not of on one or other our out she so some
    such than that the their them then there these they this to up us was we were what when
    where which who will with would you your
"""

ENGLISH = frozenset(_ENGLISH.split())
"""English stop words: in most texts, and rarely useful in a query."""


class _Memory(NamedTuple):
    """The signatures in memory; replaced as a whole, so threads can search during `allocate`."""

    filters: _native.Filters
    signatures: _native.Sliced | _native.Resident
    """Bit-sliced Bloom filters, or ribbons."""
    utility: Weights

    def search(self, terms: list[str], limit: int) -> list[int]:
        """Return the best documents that may contain all terms."""
        if isinstance(self.signatures, _native.Sliced):
            found: list[int] = self.signatures.search(terms, limit).tolist()
            return found
        offsets, ids = self.signatures.candidates_many(terms, len(self.filters), False)
        times = np.bincount(ids, minlength=len(self.filters))
        first = ids[: offsets[1]]  # the candidates of one term, the most useful first
        found = first[times[first] == len(terms)][:limit].tolist()
        return found

    @property
    def kept(self) -> Ints:
        """Bits of each signature."""
        kept = np.zeros(len(self.filters), np.int64)
        self.signatures.kept_into(kept)
        return kept

    @property
    def rates(self) -> Floats:
        """Expected false-positive rate of each signature, per absent term."""
        return _curve(self.filters).rate(self.kept)


def words(text: str) -> list[str]:
    """Split a text into words: runs of letters, marks and digits, in lower case and NFKC form.

    >>> words("Naïve Bayes, n-grams & LSTM_2")
    ['naïve', 'bayes', 'n', 'grams', 'lstm', '2']
    """
    return _native.words(unicodedata.normalize("NFKC", text).lower())


class SearchIndex:
    """Search documents by their words, the most useful first, under a memory budget.

    A query matches documents that contain all of its terms. Each document has a signature, a Bloom
    filter of its words. The full signatures and the texts are in a file. A prefix of each signature
    is in memory, longer for documents of higher utility. A search never misses a match. False
    positives occur at the rate `expected_fpr`, and are removed by checking the texts.

    >>> notes = {"sieve": "a drum sieve of fine mesh", "drum": "a drum kit", "mesh": "Mesh, drum!"}
    >>> index = SearchIndex.build(notes, utility={"sieve": 1, "drum": 3, "mesh": 2})
    >>> index.search("drum"), index.search("drum mesh", k=1)
    (['drum', 'mesh', 'sieve'], ['mesh'])

    References: Mersy, Wang, Sintos, Krishnan 2024; Goodwin et al. 2017.
    """

    def __init__(
        self, filters: _native.Filters, utility: Weights, tokenizer: Tokenizer | None
    ) -> None:
        options = filters.texts
        assert options is not None
        self._keep_texts = options.keep_texts
        self._stop_words = frozenset(options.stop_words.split("\n") if options.stop_words else ())
        self._filters = filters
        self._utility = utility
        self._tokenizer: Tokenizer = words if tokenizer is None else tokenizer
        self._budget: int | None = None
        self._texts_read = 0
        self._origin: Origin | None = None
        self._kind: SignatureKind = (
            "ribbon" if (filters.sizes().kinds == _RIBBON).any() else "sliced"
        )

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
        kind: SignatureKind = "sliced",
        path: FilePath | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Index named texts and load prefixes of their signatures that fit the budget.

        ``documents`` may be an iterator; it is consumed one text at a time. ``budget`` is in bytes
        or, as "64MB", in units of powers of ten, and counts prefixes, sizes and weights; None loads
        the full signatures. ``utility`` says how useful each document is, by name or in order.
        ``fpr`` is the false-positive rate of the full signatures, per term. Terms are `words`, or
        the output of ``tokenizer``, without ``stop_words``. The index is saved to ``path``, which
        may be a URL, opened with ``storage_options``, or a path in a ``filesystem`` of fsspec or
        pyarrow; without a path, to a temporary file.
        With ``keep_texts=False`` the file holds no texts, and results cannot be checked;
        ``kind="ribbon"`` then has fewer false positives in the same memory than bit-sliced
        signatures, but a search takes longer, because it probes each of them. ``key`` is a secret
        key for the hash, instead of a seed.

        >>> index = SearchIndex.build({"a": "to be or not to be"}, stop_words=ENGLISH)
        >>> index.counts.tolist()
        [0]
        """
        filesystem = storage_of(filesystem, storage_options)
        one_of("kind", kind, get_args(SignatureKind))
        if tokenizer is not None and not callable(tokenizer):
            raise TypeError(f"tokenizer must be a function of a text, not {tokenizer!r}")
        if isinstance(stop_words, str) or not isinstance(stop_words, Iterable):
            raise TypeError(f"stop_words must be a list of words, or ENGLISH, not {stop_words!r}")
        stops = list(dict.fromkeys(stop_words))
        for word in stops:
            if not isinstance(word, str) or not word or "\n" in word:
                raise ValueError(f"stop_words must be words without line breaks, not {word!r}")
        stops.sort()
        options = _native.TextOptions(tokenizer is not None, "\n".join(stops), keep_texts)
        filters = storage.create_filters(path, seed, key, options, filesystem)
        index = cls(filters, np.zeros(0, np.float32), tokenizer)
        index._kind = kind
        index._add(filters, documents, fpr, key)
        # Check everything before a file is written.
        weights = read_utility(utility, Names(filters), np.ones(len(filters), np.float32))
        size = None if budget is None else parse_budget(budget)
        plan = index._plan(filters, weights, size, saved=True)
        filters = storage.save_and_reopen(path, filters, weights, key, filesystem)
        index._replace(filters, weights, size, plan)
        index._origin = Origin.of(path, filters, weights, filesystem=filesystem)
        return index

    @classmethod
    def open(
        cls,
        path: FilePath,
        *,
        budget: int | str | None = None,
        utility: Mapping[str, float] | npt.ArrayLike | None = None,
        tokenizer: Tokenizer | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        cache: int | str = CACHE,
        key: bytes | None = None,
    ) -> Self:
        """Open a file written by `build` or `save` and load prefixes that fit the budget.

        Everything that is read is checked; damage raises `FormatError`. Stop words, and utilities
        unless given, come from the file. A tokenizer must be passed again. Of a URL, opened with
        ``storage_options``, or a path in a ``filesystem``, only the parts that are needed are read;
        ``cache`` limits the bytes that are cached on disk.
        """
        filesystem = storage_of(filesystem, storage_options)
        filters, saved = storage.open_filters(
            path, key, texts=True, filesystem=filesystem, cache=parse_budget(cache, "cache")
        )
        if filters.texts is None or filters.texts.own_tokenizer != (tokenizer is not None):
            wanted = "None" if tokenizer is not None else "the one that the index was built with"
            given = "a function" if tokenizer is not None else "None"
            raise ValueError(f"tokenizer must be {wanted}, not {given}")
        index = cls(filters, as_weights(saved), tokenizer)
        in_file = index._utility
        with storage.path_in_errors(path):
            index.allocate(budget=budget, utility=utility)
        index._origin = Origin.of(path, filters, in_file, filesystem=filesystem, cache=cache)
        return index

    def save(
        self,
        path: FilePath,
        *,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write full signatures, texts and utilities to a file or object, atomically."""
        filesystem = storage_of(filesystem, storage_options)
        memory = self._memory
        storage.save_filters(path, memory.filters, memory.utility, filesystem)
        self._origin = Origin.of(path, memory.filters, memory.utility, filesystem=filesystem)

    def __reduce__(self) -> tuple[Any, ...]:
        origin = saved_origin(self._origin, self._filters, "a search index")
        utility = None if origin.utility is self._utility else self._utility
        tokenizer = None if self._tokenizer is words else self._tokenizer
        options = {
            **origin.options, "budget": self._budget, "utility": utility, "tokenizer": tokenizer,
        }  # fmt: skip
        return _reopened, (type(self), origin.path, options)

    def search(self, query: str, k: int | None = 10, *, verify: bool | None = None) -> list[str]:
        """Return the ``k`` most useful documents that contain all terms of the query; None: all.

        ``verify`` checks each document against its text, so that the result is exact (default: if
        the index has texts). Without it, some documents may lack a term. A query without terms
        matches every document.
        """
        terms, memory = set(self._terms(query)), self._memory
        limit = storage.read_limit("k", k)
        if verify is None:
            verify = self._keep_texts
        elif verify and not self._keep_texts:
            raise ValueError("verify must be False: the index was built with keep_texts=False")
        if not terms:
            ids = np.argsort(-memory.utility, kind="stable")[:limit].tolist()
        elif verify:
            ids = self._verified(memory, terms, limit)
        else:
            ids = memory.search(list(terms), limit)
        return [memory.filters.name(id) for id in ids]

    def text(self, name: str) -> str:
        """Return the text of a document."""
        filters = self._filters
        text = filters.text(Names(filters).find(name))
        if text is None:
            raise ValueError("the index has no texts: it was built with keep_texts=False")
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
        """Add a document and reallocate; `save` writes it to a file. See `extend` for many."""
        self.extend([(name, text)], utility=[utility], fpr=fpr, key=key)

    def extend(
        self,
        documents: Documents,
        *,
        utility: npt.ArrayLike | None = None,
        fpr: float = 1e-4,
        key: bytes | None = None,
    ) -> None:
        """Add documents and reallocate.

        ``utility`` is one number per new document (default: 1). An index with a secret key needs
        ``key`` to hash the new words.

        >>> index = SearchIndex.build({"a": "fine mesh"})
        >>> index.extend({"b": "coarse mesh", "c": "no sieve"}, utility=[2, 1])
        >>> index.search("mesh")
        ['b', 'a']
        """
        filters = self._filters.without([])  # a copy: a failure must leave this index as it was
        self._add(filters, documents, fpr, key)
        weights = extend_utility(self._utility, utility, len(filters) - len(self), "document")
        self._replace(filters, weights, self._budget, self._plan(filters, weights, self._budget))

    def drop(self, name: str) -> None:
        """Remove a document and reallocate."""
        id = self.names.find(name)
        filters, weights = self._filters.without([id]), np.delete(self._utility, id)
        self._replace(filters, weights, self._budget, self._plan(filters, weights, self._budget))

    def allocate(
        self,
        *,
        budget: int | str | None = None,
        utility: Mapping[str, float] | npt.ArrayLike | None = None,
    ) -> None:
        """Load prefixes for another budget (None: the full signatures) or other utilities.

        Reads only the file, and does not change it.

        >>> index = SearchIndex.build({str(i): f"note {i} of many" for i in range(1000)})
        >>> full = index.size_in_bytes
        >>> index.allocate(budget=full - 5000, utility=range(1000))
        >>> bool(index.size_in_bytes <= full - 5000), index.search("note 7", 1)
        (True, ['7'])
        """
        weights = read_utility(utility, self.names, self._utility)
        size = None if budget is None else parse_budget(budget)
        self._replace(self._filters, weights, size, self._plan(self._filters, weights, size))

    @property
    def names(self) -> Names:
        """The names of the documents; indexing by an array of numbers returns an array of names."""
        return Names(self._filters)

    @property
    def utility(self) -> Floats:
        """How useful each document is, relative to the others."""
        return self._utility.astype(np.float64)

    @property
    def budget(self) -> int | None:
        """The memory budget in bytes, or None."""
        return self._budget

    @property
    def counts(self) -> Ints:
        """Distinct terms of each document."""
        return self._filters.sizes().counts

    @property
    def kept(self) -> Ints:
        """Bits of each signature in memory."""
        return self._memory.kept

    @property
    def full(self) -> Ints:
        """Bits of each full signature."""
        return _curve(self._filters).bits

    @property
    def fprs(self) -> Floats:
        """Expected false-positive rate of each document, per absent term."""
        return self._memory.rates

    @property
    def expected_fpr(self) -> float:
        """Expected false-positive rate per absent term, weighted by utility."""
        memory = self._memory
        return weighted_rate(memory.utility.astype(np.float64), memory.rates)

    @property
    def size_in_bytes(self) -> int:
        """Memory of the prefixes, sizes and weights."""
        return self.min_budget + (self.size_in_bits + 7) // 8

    @property
    def min_budget(self) -> int:
        """The smallest possible budget in bytes: sizes and weights without any bits."""
        memory = self._memory
        return memory.signatures.overhead + _own_bytes(memory.filters)

    @property
    def size_in_bits(self) -> int:
        """Bits of the prefixes alone."""
        return self._memory.signatures.bits

    @property
    def stop_words(self) -> frozenset[str]:
        """Words that are ignored in documents and queries."""
        return self._stop_words

    @property
    def texts_read(self) -> int:
        """Texts read to check search results."""
        return self._texts_read

    @property
    def seed(self) -> int | None:
        """The seed of the hash, or None if a secret key is used."""
        return self._filters.seed

    def __len__(self) -> int:
        return len(self._filters)

    def __repr__(self) -> str:
        return (
            f"<tamis.text.SearchIndex: {len(self):,} documents, {self.size_in_bytes:,} bytes in "
            f"memory, {self.min_budget / max(len(self), 1):.1f} per document for overhead>"
        )

    def _terms(self, text: str) -> list[str]:
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, not {text!r} of type {type(text).__name__}")
        return [term for term in self._tokenizer(text) if term not in self._stop_words]

    def _add(
        self, filters: _native.Filters, documents: Documents, fpr: float, key: bytes | None
    ) -> None:
        for name, text in Names(filters).check_new(documents, "document"):
            distinct = _native.Distinct(self._terms(text), filters.seed or 0, key)
            filters.add(name, storage.full_filter(distinct, self._kind, fpr), text)

    def _replace(
        self, filters: _native.Filters, weights: Weights, budget: int | None, kept: Ints
    ) -> None:
        """Load signatures as planned, then replace everything, or nothing if that fails."""
        signatures: _native.Sliced | _native.Resident
        if self._kind == "ribbon":
            order = np.argsort(-weights, kind="stable").astype(np.uint32)
            signatures = filters.resident(order, kept[order].astype(np.uint64))
        else:
            curve = _sliced_curve(filters)
            lengths = curve.bits // np.maximum(curve.hashes, 1)
            signatures = load_sliced(filters, curve, kept // np.maximum(lengths, 1), weights)
        self._memory = _Memory(filters, signatures, weights)
        self._filters, self._utility, self._budget = filters, weights, budget

    def _plan(
        self,
        filters: _native.Filters,
        weights: Weights,
        budget: int | None,
        *,
        saved: bool = False,
    ) -> Ints:
        """Return how many bits of each signature to load."""
        utility, what = weights.astype(np.float64), f"{len(filters)} documents"
        own = _own_bytes(filters, saved=saved)
        if self._kind == "ribbon":
            sizes = filters.sizes()
            curve = rate_curve(sizes)
            if budget is None:
                return curve.bits
            return optimal(curve, utility, storage.filter_bits(budget, sizes.overhead + own, what))
        sliced, bits = _sliced_curve(filters), None
        if budget is not None:
            bits = storage.filter_bits(budget, sliced_overhead(sliced) + own, what)
        return planning.plan_segments(sliced, utility, bits) * (
            sliced.bits // np.maximum(sliced.hashes, 1)
        )

    def _verified(self, memory: _Memory, terms: set[str], limit: int) -> list[int]:
        """Search for more and more candidates until enough of them contain the terms."""
        found: list[int] = []
        checked, more = 0, limit
        while len(found) < limit:
            ids = memory.search(list(terms), more)
            for id in ids[checked:]:
                self._texts_read += 1
                if terms.issubset(self._terms(memory.filters.text(id) or "")):
                    found.append(id)
                    if len(found) == limit:
                        break
            if len(ids) < more:
                break
            checked, more = more, 4 * more
        return found


def _curve(filters: _native.Filters) -> Mixed:
    return rate_curve(filters.sizes())


def _sliced_curve(filters: _native.Filters) -> Segmented:
    sizes = filters.sizes()
    return Segmented(sizes.bits, sizes.hashes, sizes.counts)


def _own_bytes(filters: _native.Filters, *, saved: bool = False) -> int:
    """Memory of the directory and utilities."""
    weights = np.dtype(np.float32).itemsize * len(filters)
    return filters.size_in_bytes(saved=saved) + weights


def _reopened(cls: type[SearchIndex], path: str, options: dict[str, Any]) -> SearchIndex:
    return cls.open(path, **options)
