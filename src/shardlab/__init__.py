"""How many copies of a dataset a node holds, how fast each data path is, whether every rank gets its own."""

__version__ = "0.1.0"
