"""The API reference: ``python -m sphinx -W --keep-going .docs OUT``; every warning is an error."""

from __future__ import annotations

import pydoc
import re
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import rankscope

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "rankscope"
author = copyright = "The rankscope developers"
version = release = rankscope.__version__
extensions = ["sphinx.ext.autodoc", "numpydoc"]
html_theme = "alabaster"
html_theme_options = {"page_width": "78em", "fixed_sidebar": True}
html_show_sourcelink = False

# a reference to something that is not there is a warning; other projects are not looked up
nitpicky = True
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(abc|collections|enum|io|matplotlib|networkx|numpy|pathlib|torch|typing|xarray)\..*",
    )
]

# a name is shown where it is defined, and once more among the names of `rankscope` itself
autodoc_default_options = {"members": True, "member-order": "bysource", "ignore-module-all": True}
autodoc_typehints = "none"
numpydoc_show_class_members = False

_STAR = re.compile(r"(?<=[( ])\*(?=(batch|lead|shape|keep_shape)\b)")


def starred(
    _app: Sphinx, _what: str, _name: str, _object: object, _options: Any, lines: list[str]
) -> None:
    """The star of a shape such as (*batch, n) begins no emphasis."""
    lines[:] = [_STAR.sub(r"\\*", line) for line in lines]


def aliases(
    _app: Sphinx, _what: str, _name: str, found: object, _skip: bool, _options: Any
) -> bool | None:
    """Leave out names of types: Sphinx takes them for classes and fails at their signature."""
    return True if isinstance(found, GenericAlias) else None


def elsewhere(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Link a name that a docstring uses as its module imports it, or by the path that users take.

    Sphinx knows a name only by the module that defines it. A name that is in no module at all, or
    in two, is still reported.
    """
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    for path in (target, f"{node.get('py:module')}.{target}"):
        found = pydoc.locate(path)
        module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
        if module and name:
            target = f"{module}.{name}"
            break
    objects = env.domains.python_domain.objects
    # the names of the package itself are copies
    places = [
        full
        for full in objects
        if full == target or (full.endswith(f".{target}") and full != f"rankscope.{target}")
    ]
    if len(places) != 1:
        return None
    place = objects[places[0]]
    from sphinx.util.nodes import make_refnode

    return make_refnode(
        app.builder, str(node["refdoc"]), place.docname, place.node_id, content, places[0]
    )


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    # before numpydoc takes the docstring apart
    app.connect("autodoc-process-docstring", starred, priority=100)
    app.connect("autodoc-skip-member", aliases)
    app.connect("missing-reference", elsewhere)
