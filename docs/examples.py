"""An extension of mkdocstrings: examples in docstrings are code, line by line.

Without a fence, Markdown takes lines that start with >>> for a quotation, and joins them.
"""

import re
from typing import Any

try:
    from griffe import Extension
except ImportError:  # the tests run the example below without it
    Extension = object

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    r"""Return a docstring with each example in a fence.

    >>> fenced("Two:\n\n>>> 1 + 1\n2\n\nMore.").splitlines()[2:6]
    ['```python', '>>> 1 + 1', '2', '```']
    """
    return _EXAMPLE.sub(lambda found: f"```python\n{found[0]}\n```", text)


class Examples(Extension):
    """Fences the examples of every docstring."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Change the docstring of an object that was loaded."""
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
