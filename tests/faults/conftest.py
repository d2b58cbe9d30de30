"""The stage of all tests here."""

from __future__ import annotations

from scene import scene

__all__ = ["scene"]
