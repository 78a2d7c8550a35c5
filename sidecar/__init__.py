"""noetl-chain: the shadow comparator for NoETL's execution chains."""

__version__ = "0.1.0"
