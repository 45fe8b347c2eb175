"""The four pools that a session passes: INIT, READY (bounded), RUNNING, POSTRUN."""
