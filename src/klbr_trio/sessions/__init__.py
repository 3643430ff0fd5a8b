"""Where everything is joined: sessions with their runners, turns and kernels.

`registry` owns the nursery; `entry` is one session in it; `driver` starts runners
and fires deadlines; `recovery` settles what an earlier service left; `runner` runs a
session's turns; `turn` is one of them; `prompt` is what the model sees.
"""

from __future__ import annotations
