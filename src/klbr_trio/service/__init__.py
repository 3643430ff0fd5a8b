"""The service: clients' messages in, committed records and live chunks out.

`server` is the composition; `client` reads one socket, a `desk` serves its requests
about one session, a `follower` sends what that session commits, all through one `door`.
`port` below them is bytes.
"""

from __future__ import annotations
