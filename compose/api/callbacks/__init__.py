"""Callbacks: each end of a session and of a task told to the URL that its task names, at least once, signed."""
