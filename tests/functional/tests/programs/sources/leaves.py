# Gives up what it may do, in the way that it is told, then listens, and sends back what comes on some connections; or,
# told a port, makes those.
import encodings.idna  # which cannot be found later
import os
import socket
import sys

NOBODY = 65534
COUNT = 3
WAYS = {
    "setuid": lambda: os.setuid(NOBODY),
    "seteuid": lambda: os.seteuid(NOBODY),
    "setreuid": lambda: os.setreuid(NOBODY, NOBODY),
    "setresuid": lambda: os.setresuid(NOBODY, NOBODY, NOBODY),
    "chroot": lambda: os.chroot(sys.argv[2]),
    "chroot and setuid": lambda: (os.chroot(sys.argv[2]), os.setuid(NOBODY)),
}


def serve():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    for _ in range(COUNT):
        with listener.accept()[0] as server:
            while bytes_ := server.recv(4096):
                server.sendall(bytes_)


def connect(port):
    right = 0
    for _ in range(COUNT):
        with socket.create_connection(("127.0.0.1", port)) as client:
            for n in range(1, 50):
                client.sendall(b"x" * n)
                right += client.recv(n, socket.MSG_WAITALL) == b"x" * n
    print(right)


if sys.argv[1] == "connect":
    connect(int(sys.argv[2]))
else:
    WAYS[sys.argv[1]]()
    serve()
