"""Answers each request with its number and one, a thread per connection: server.py ADDRESS PORT BYTES"""

import socket
import sys
import threading


def serve(connection, size):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    filling = b"y" * (size - 8)
    with connection:
        while True:
            request = b""
            while len(request) < size:
                part = connection.recv(size - len(request))
                if not part:
                    return
                request += part
            number = int.from_bytes(request[:8], "big") + 1 & (1 << 64) - 1
            connection.sendall(number.to_bytes(8, "big") + filling)


address, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
listener = socket.create_server((address, port), backlog=1024)
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection, size), daemon=True).start()
