"""Results as frames and pictures; the one room where pandas is imported."""

from shardlab.analysis.load import Results, load

__all__ = ["Results", "load"]
