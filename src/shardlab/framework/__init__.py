"""How a model is trained: one file per ``--framework``, each of which prepares a model for the one loop.

A framework is ``open(model, optimizer_of, world, device) -> Prepared``; one that has a loop of its own,
``run(training)``, is given all that ours is made of.
"""

from shardlab.framework._prepared import Exchange, Prepared

__all__ = ["Exchange", "Prepared"]
