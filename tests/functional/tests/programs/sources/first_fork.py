"""A program's first connection: it sends, does not look at it again, forks, and the child goes on as a reader."""

import os
import socket
import sys
import time

listener = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(listener.getsockname())
peer, _ = listener.accept()
connection.sendall(b"x")
assert peer.recv(1) == b"x"
peer.sendall(b"hello")
if "half" in sys.argv:
    peer.shutdown(socket.SHUT_WR)
time.sleep(0.1)
if os.fork() == 0:
    os.dup2(connection.fileno(), 0)
    os.execvp("timeout", ["timeout", "10", "head", "-c5"])
print("", os.wait()[1])
