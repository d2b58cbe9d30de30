"""What the pages of a job hold: resident memory of all its processes, counted by content.

Imports go down: ``result`` <- ``pages`` (which pages are there) <- ``reading`` (their bytes) <- ``counting``
(who holds what) <- ``take``, the one function that others call.
"""
