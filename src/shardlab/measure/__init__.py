"""Reads the memory and the CPU time of the processes of a run; steers none of them.

``procfs`` parses, ``kernel`` says what can be read here, ``tree`` finds the processes, ``pagecache`` counts
pages of files, ``hold`` is the ranks' side of the barrier at which memory is read and ``monitor`` the
process that reads it.
"""
