"""The HTTP API: tasks in, states and trajectories out, on nothing but the topics; it holds no state of its own.

In: HTTP requests with the API key. Out: `rollout.tasks`, `rollout.control`, callbacks to the URLs that tasks name, and
`rollout.callbacks`, which says how those went. What it answers is a projection of the log, rebuilt at each start, so that several
API processes can run side by side and none has anything to lose. `app.create_app` makes the ASGI application, `service.run` serves it.
"""
