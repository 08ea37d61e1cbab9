"""For mkdocstrings: the comment at the end of a field's line is what the reference says about the field."""

import tokenize
from typing import Any

from griffe import Docstring, Extension


class FieldComments(Extension):
    """Gives fields of classes that have no docstring the comment of their line, as a sentence."""

    def on_attribute_instance(self, *, attr: Any, **_: Any) -> None:
        """Called by griffe for every attribute."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            comment = _comments(attr.filepath).get(attr.endlineno, "")
            if comment:
                attr.docstring = Docstring(f"{comment[0].upper()}{comment[1:].rstrip('.')}.", parent=attr)


_READ: dict[Any, dict[int, str]] = {}


def _comments(path: Any) -> dict[int, str]:
    """The comments of a file by line."""
    if path not in _READ:
        with tokenize.open(path) as file:
            tokens = list(tokenize.generate_tokens(file.readline))
        _READ[path] = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    return _READ[path]
