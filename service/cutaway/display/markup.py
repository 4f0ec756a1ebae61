"""HTML elements, in which every text is escaped and made harmless."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from cutaway.results.text import harmless

_LONGEST = 600  # characters of one text


class Markup(str):
    """Text that is HTML already, or a data URL."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Markup:
    """Returns one element: a child that is no `Markup` is text. An attribute ``class_`` is the class."""
    words = "".join(f' {name.rstrip("_")}="{_text(value)}"' for name, value in attributes.items())
    return Markup(f"<{tag}{words}>" + ("" if tag == "img" else f"{joined(children)}</{tag}>"))


def joined(children: Iterable[str]) -> Markup:
    """Returns the children one after the other, those that are text escaped."""
    return Markup("".join(map(_text, children)))


def _text(text: str) -> str:
    return text if isinstance(text, Markup) else escape(harmless(text, _LONGEST))
