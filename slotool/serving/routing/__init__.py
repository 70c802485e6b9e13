"""From a request's arrival to its result: queues, dispatch, calls, versions behind other servers."""
