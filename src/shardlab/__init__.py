"""How many copies of your dataset does a node hold, how fast is each data path, does every rank get what it should."""

__version__ = "0.1.0"
