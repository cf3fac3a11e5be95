"""A program's first connection: it sends, does not look at it again, forks, and the child goes on as a reader.

late: the connection is taken up, and the answer comes, between the fork and the exec.
"""

import os
import socket
import sys
import time

listener = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(listener.getsockname())
connection.sendall(b"x")


def answer():
    peer, _ = listener.accept()
    assert peer.recv(1) == b"x"
    peer.sendall(b"hello")
    if "half" in sys.argv:
        peer.shutdown(socket.SHUT_WR)
    time.sleep(0.1)
    return peer


is_late = "late" in sys.argv
peer = None if is_late else answer()
answered, has_answered = os.pipe()
if os.fork() == 0:
    if is_late:
        os.read(answered, 1)
    os.dup2(connection.fileno(), 0)
    os.execvp("timeout", ["timeout", "10", "head", "-c5"])
if is_late:
    peer = answer()
    os.write(has_answered, b"x")
print("", os.wait()[1])
