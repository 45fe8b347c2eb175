"""Groups: whole groups are admitted, stopped early, re-queued and closed. In: facts of rollout.groups; out: facts of groups and sessions."""
