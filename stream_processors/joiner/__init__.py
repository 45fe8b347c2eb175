"""The joiner: a session's terminal fact, trajectory and rewards in, scored trajectories out."""
