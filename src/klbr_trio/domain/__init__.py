"""What everything else is about: ids, events, work, session states, the log's meaning.

Pure values and functions over the standard library and attrs. No module here
reads a file, opens a socket or knows an event loop.
"""

from __future__ import annotations
