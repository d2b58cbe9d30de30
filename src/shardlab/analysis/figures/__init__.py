"""Figures as functions: axes and a frame in, the same axes out. Nothing is shown, saved or set for others.

>>> figure, ax = sheet(rows=4)
>>> ax is throughput(ax, by_configuration(runs))  # doctest: +SKIP
True
"""

from shardlab.analysis.figures.deliveries import owners, ownership
from shardlab.analysis.figures.memory import copies_bars, memory_over_time
from shardlab.analysis.figures.speed import curve, ratios, seconds, throughput
from shardlab.analysis.figures.style import INK, PALETTE, QUIET, RULE, dress, key, lines_of, note, sheet

__all__ = [
    "INK", "PALETTE", "QUIET", "RULE", "copies_bars", "curve", "dress", "key", "lines_of", "memory_over_time", "note",
    "owners", "ownership", "ratios", "seconds", "sheet", "throughput",
]  # fmt: skip
