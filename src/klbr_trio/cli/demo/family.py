"""The processes that a process has started, with all that those have started."""

from __future__ import annotations

from pathlib import Path

import attrs


@attrs.frozen
class Process:
    """One process; a number alone may be given to another one later."""

    pid: int
    started: int
    """In ticks since the machine's start."""


def descendants(pid: int) -> set[Process]:
    """Everything that lives below the process `pid` now."""
    children: dict[int, list[Process]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        found = _look(int(folder.name))
        if found is not None:
            process, parent = found
            children.setdefault(parent, []).append(process)
    below: set[Process] = set()
    parents = [pid]
    while parents:
        new = children.get(parents.pop(), [])
        below.update(new)
        parents.extend(process.pid for process in new)
    return below


def alive(processes: set[Process]) -> set[Process]:
    """Those of the processes that have not ended."""
    found = (_look(process.pid) for process in processes)
    return {each[0] for each in found if each is not None} & processes


def _look(pid: int) -> tuple[Process, int] | None:
    """The process and its parent's number; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name may hold anything, also brackets; the fields behind it are numbers.
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return Process(pid, int(fields[19])), int(fields[1])
