"""``python -IS launch.py SOCKET SCRIPT ARGUMENT…``: have the process that listens there run a script in a fork.

The fork has this process's folder, environment, open files and cores; this process ends as the fork does, and passes on
to it the signals that ask a process to end or to read its files anew. Where this one is killed, the fork is too. It
starts at once, as it imports next to nothing. ``-c CODE`` in place of a script is of a process that ends with its
parent.
"""

import ctypes
import json
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1
if sys.argv[2] == "-c":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
files = [int(number) for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
document = {
    "arguments": sys.argv[2:],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "parent": os.getppid(),
    "files": files,
    "cores": sorted(os.sched_getaffinity(0)),
}
request = json.dumps(document).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, [len(request).to_bytes(8, "big")], files)
    server.sendall(request)
    child = int.from_bytes(server.recv(8, socket.MSG_WAITALL), "big")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    ended = int.from_bytes(server.recv(8, socket.MSG_WAITALL), "big", signed=True)
if ended < 0:
    if ended != -signal.SIGKILL:
        signal.signal(-ended, signal.SIG_DFL)
    os.kill(os.getpid(), -ended)
sys.exit(ended)
