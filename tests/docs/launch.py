"""``python -IS launch.py SOCKET SCRIPT ARGUMENT…``: have the process that listens there run a script in a fork.

The fork has this process's folder, environment and open files; this process ends as the fork does, and passes on to it
the signals that ask a process to end or to read its files anew. Where this one is killed, the fork is too. It starts at
once, as it imports next to nothing.
"""

import json
import os
import signal
import socket
import sys

request = json.dumps({"arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    child = int.from_bytes(server.recv(8, socket.MSG_WAITALL), "big")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    ended = int.from_bytes(server.recv(8, socket.MSG_WAITALL), "big", signed=True)
if ended < 0:
    signal.signal(-ended, signal.SIG_DFL)
    os.kill(os.getpid(), -ended)
sys.exit(ended)
