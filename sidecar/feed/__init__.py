"""Tail batches into the chain store.  `feed.feed` is the way of a batch; source: spec 2.12."""

from sidecar.feed.feed import Feed
from sidecar.feed.report import FeedReport

__all__ = ["Feed", "FeedReport"]
