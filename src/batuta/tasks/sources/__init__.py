"""Where tasks come from: published benchmarks, generators, files of one's own."""

from batuta.tasks.sources.fetch import fetch
from batuta.tasks.sources.load import data_folder, find, here, load
from batuta.tasks.sources.own import read_own
from batuta.tasks.sources.source import Choice, Hub, Source, Split
from batuta.tasks.sources.table import SOURCES

__all__ = [
    "SOURCES",
    "Choice",
    "Hub",
    "Source",
    "Split",
    "data_folder",
    "fetch",
    "find",
    "here",
    "load",
    "read_own",
]
