"""A server that forks for each connection, and what its clients do one after the other: short connections, one on which a thread waits
while another one makes it last, one that lasts, a short one.
"""

import os
import signal
import socket
import sys
import threading
import time


def hear(connection):
    connection.sendall(b"heard " + connection.recv(1000))


def talk(connection, messages):
    """Sends, while another thread waits for what comes."""
    hears = threading.Thread(target=hear, args=[connection])
    hears.start()
    time.sleep(0.05)
    for _ in range(messages):
        connection.sendall(b"x")
    hears.join()


short, exchanges = int(sys.argv[1]), int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", 0))
server = os.fork()
if server == 0:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            while message := connection.recv(1000):
                if message == b"talk":
                    talk(connection, exchanges)
                else:
                    connection.sendall(message[::-1])
            connection.close()
            os._exit(0)
        connection.close()


def connect(messages):
    with socket.create_connection(listener.getsockname()) as connection:
        for n in range(messages):
            connection.sendall(b"message %d" % n)
            assert connection.recv(1000) == (b"message %d" % n)[::-1]
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


for _ in range(short):
    connect(2)
with socket.create_connection(listener.getsockname()) as connection:
    connection.sendall(b"talk")
    assert connection.recv(exchanges, socket.MSG_WAITALL) == b"x" * exchanges
    connection.sendall(b"now")
    assert connection.recv(9, socket.MSG_WAITALL) == b"heard now"
for _ in range(short):
    connect(2)
connect(exchanges)
connect(2)
os.kill(server, signal.SIGTERM)
print(os.waitpid(server, 0)[1])
