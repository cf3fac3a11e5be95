# What a program sees that limits its own addresses (RLIMIT_AS), or, with `started`, one that was limited before: what it
# may map, beside a connection to itself, and which limits it and its children read. With `session`: a child limits itself,
# as an FTP server's does, and takes a connection from its parent.
import mmap
import os
import resource
import socket
import subprocess
import sys

MIB = 1 << 20
AS = resource.RLIMIT_AS
listener = socket.create_server(("127.0.0.1", 0))


def connection():
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    for one, other in ((client, server), (server, client)):
        one.send(b"x" * 1000)
        assert other.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
    return client, server


def maps(mebibytes):
    try:
        mapped = mmap.mmap(-1, mebibytes * MIB)
        mapped[5] = 1
        mapped.close()
        return f"maps {mebibytes}"
    except OSError as error:
        return f"{mebibytes}: {error.strerror}"


def sets(*limits):
    try:
        resource.setrlimit(AS, tuple(limit * MIB for limit in limits))
        return f"set {limits}"
    except (OSError, ValueError) as error:
        return f"{limits}: {error}"


def reads():
    said = [resource.getrlimit(AS), resource.prlimit(0, AS), resource.prlimit(os.getpid(), AS)]
    return f"reads {said}"


def child(command):
    # As a shell does it: a fork that becomes another program.
    pid = os.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "-c", command])
    os.waitpid(pid, 0)


def session():
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        print(sets(200, 200), maps(1000), flush=True)
        with socket.create_server(("127.0.0.1", 0)) as server:
            os.write(writer, b"%d\n" % server.getsockname()[1])
            data = server.accept()[0]
            while got := data.recv(1000):
                data.sendall(got)
        os._exit(0)
    with socket.create_connection(("127.0.0.1", int(os.read(reader, 100)))) as client:
        for _ in range(100):
            client.sendall(b"x" * 1000)
            assert client.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
    print(os.waitpid(pid, 0)[1])


if sys.argv[1] == "session":
    session()
    sys.exit()
connections = [connection()]
if sys.argv[1] == "started":
    print(maps(200))
    sys.exit()
print(reads())
print(sets(250, 600), maps(100), reads(), flush=True)
child("ulimit -S -v; ulimit -S -v 150000; bash -c 'ulimit -S -v'")
print(sets(300, 200), sets(200, 600), reads(), maps(100), maps(1000))
print(resource.prlimit(0, AS, (220 * MIB, 500 * MIB)), reads())
# The connection of before goes on, and another one is made.
connections[0][0].send(b"y")
print(connections[0][1].recv(1))
connections.append(connection())
print(maps(100), sets(500, 500), reads())
try:
    os.execvp("/nonexistent", ["nonexistent"])
except OSError as error:
    print(error.strerror, maps(300), reads())
