"""The orchestrator: tasks and facts in, addressed stage commands, the state of every session and its one end out."""
