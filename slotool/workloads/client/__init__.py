"""The open-loop load client, and the channels to a server."""
