"""Shell scripts that run inside a container: looking around in it, and killing what a program left there.

They need nothing of the image but `/bin/sh`, `grep`, `mkdir` and `id`, and work with dash, bash and busybox.
"""

from __future__ import annotations

EXEC_VARIABLE = "POLYNYA_EXEC"

SURVEY = """
for place; do [ -d "$place" ] || echo "missing=$place"; done
echo "uid=$(id -u)"; echo "gid=$(id -g)"
"""
"""What of these directories isn't there, and who we are."""

LAUNCH = """
cd -- "$1" 2>/dev/null || { printf %s "$2" >&2; exit 126; }
shift 2
exec "$@"
"""
"""Becomes the program in a directory; where there is no such directory it says the word $2, and nothing else."""

KILL_ALL = "kill -$1 -1"
"""Signals every process of the container but its first and this one."""

KILL_MARKED = """
round=0
while [ $round -lt 20 ]; do
  found=
  for place in /proc/[0-9]*; do
    pid=${place#/proc/}
    [ "$pid" = 1 ] && continue
    if grep -q "$2" "$place/environ" 2>/dev/null; then found=1; kill -"$1" "$pid" 2>/dev/null; fi
  done
  [ -n "$found" ] || exit 0
  [ "$1" = KILL ] || exit 0
  round=$((round + 1))
done
"""
"""Signals every process whose environment has the mark $2; with KILL, again until there is none."""
