"""The Python API of the library: `batuta.open` (here `open_session`), `ask` and `ask_sync`."""

from batuta.session.options import AskOptions
from batuta.session.questions import ImageLike, QuestionLike
from batuta.session.session import Session, ask, ask_sync, open_session
from batuta.session.stream import RunStream

__all__ = [
    "AskOptions",
    "ImageLike",
    "QuestionLike",
    "RunStream",
    "Session",
    "ask",
    "ask_sync",
    "open_session",
]
