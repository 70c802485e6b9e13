"""Routing from a request's arrival to its result: queues, dispatch, calls, remote versions."""
