# Gives up what it may do, in the way that it is told, then listens, and sends back what comes on some connections; or,
# told a port, makes those.
import encodings.idna  # which cannot be found later
import os
import socket
import sys

NOBODY = 65534
COUNT = 3
listener = None


def leave_tree():
    os.chroot(sys.argv[2])


def listen():
    global listener
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)


def fork():
    """The child goes on, once the parent has ended."""
    parent, ends = os.pipe()
    if os.fork():
        os._exit(0)
    os.close(ends)
    os.read(parent, 1)


def fork_beside():
    """The child goes on, and the parent waits for it."""
    if pid := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


STEPS = {
    "setuid": lambda: os.setuid(NOBODY),
    "seteuid": lambda: os.seteuid(NOBODY),
    "setreuid": lambda: os.setreuid(NOBODY, NOBODY),
    "setresuid": lambda: os.setresuid(NOBODY, NOBODY, NOBODY),
    "chroot": leave_tree,
    "listen": listen,
    "fork": fork,
    "fork beside": fork_beside,
}


def serve():
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
    # Whoever waits for this process waits for the last of those below.
    last, done = os.pipe()
    if os.fork():
        os.close(done)
        sys.exit(os.read(last, 2) != b"ok")
    for step in sys.argv[1].split(", "):
        STEPS[step]()
    if not listener:
        listen()
    serve()
    os.write(done, b"ok")
