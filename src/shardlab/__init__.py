"""How many copies of a dataset a node holds, how fast each data path is, whether every rank gets its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardlab.library import loader, share

__version__ = "0.1.0"
__all__ = ["loader", "share"]


def __getattr__(name: str) -> Any:
    """The names above, imported when they are asked for: ``import shardlab`` alone loads no torch."""
    if name in __all__:
        from shardlab import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
