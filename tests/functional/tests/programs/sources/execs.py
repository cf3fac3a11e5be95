"""A server that reads a line from each connection, and has a program send the rest back once all of it has come."""

import os
import select
import socket
import subprocess
import sys


def serve(connection, how):
    # Both ends have found each other after some rounds.
    for _ in range(8):
        connection.sendall(b"?")
        connection.recv(1)
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1)
    end = select.poll()
    end.register(connection, select.POLLRDHUP)
    end.poll()
    connection.sendall(b"got " + line)
    number = connection.fileno()
    if how.startswith("ended"):
        connection.shutdown(socket.SHUT_WR)
        # TCP_CLOSE.
        while connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 7:
            pass
    if how == "subprocess":
        subprocess.run(["cat"], stdin=connection, stdout=connection, check=True)
    elif how == "spawn":
        actions = [(os.POSIX_SPAWN_DUP2, number, 0), (os.POSIX_SPAWN_DUP2, number, 1)]
        os.waitpid(os.posix_spawnp("cat", ["cat"], os.environ, file_actions=actions), 0)
    elif how == "system":
        os.set_inheritable(number, True)
        os.system("head -c 100 <&%d >&%d; cat <&%d >&%d" % ((number,) * 4))
    elif how == "exec":
        if os.fork() == 0:
            os.dup2(number, 0)
            os.dup2(number, 1)
            os.execvp("sh", ["sh", "-c", "dd bs=1 count=10 2>/dev/null; exec cat"])
        connection.close()
        os.wait()
    elif how == "ended-subprocess":
        rest = subprocess.run(["cat"], stdin=connection, stdout=subprocess.PIPE).stdout
        assert rest == REST, len(rest)
    elif how == "ended-exec":
        read, write = os.pipe()
        if os.fork() == 0:
            os.dup2(number, 0)
            os.dup2(write, 1)
            os.execvp("cat", ["cat"])
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            rest = pipe.read()
        os.wait()
        assert rest == REST, len(rest)


REST = bytes(n * 7 % 251 for n in range(30000))


def ask(address):
    with socket.create_connection(address) as connection:
        for _ in range(8):
            assert connection.recv(1) == b"?"
            connection.sendall(b"!")
        bytes_ = b"a line\n" + REST
        connection.sendall(bytes_)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(100000):
            answer += piece
    print(len(answer), answer == b"got " + bytes_)


listener = socket.create_server(("127.0.0.1", 0))
ways = sys.argv[1:]
if os.fork() == 0:
    for way in ways:
        connection, _ = listener.accept()
        serve(connection, way)
        connection.close()
    sys.exit(0)
for way in ways:
    print(way, end=" ", flush=True)
    ask(listener.getsockname())
print(os.wait()[1])
