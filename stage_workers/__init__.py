"""Stage workers: INIT, READY, RUNNING and POSTRUN of sessions, in runtimes, with unmodified harnesses.

In: stage commands addressed to this worker's incarnation, facts of sessions, controls, the proxies' heartbeats. Out: facts of
sessions, rewards, heartbeats; and at a capture proxy, leases opened and sealed. A worker holds no state that must survive it: what
it knew is told again by the orchestrator to the next one.
"""
