# Closes all descriptors from 3 on, as daemons and ssh do, by each of the ways that there are, and goes on.
import ctypes
import os
import resource
import socket

LIBC = ctypes.CDLL(None, use_errno=True)


def exchange(what):
    listener = socket.create_server(("127.0.0.1", 0))
    right = 0
    for _ in range(3):
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as server:
            for n in range(1, 50):
                client.sendall(b"x" * n)
                right += server.recv(n, socket.MSG_WAITALL) == b"x" * n
                server.sendall(b"y" * n)
                right += client.recv(n, socket.MSG_WAITALL) == b"y" * n
    print(what, right, listener.fileno())
    # The number is closed by other means.
    listener.detach()


def one_by_one():
    for fd in range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        try:
            os.close(fd)
        except OSError:
            pass


def as_listed():
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass


resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
exchange("at first")
LIBC.close_range(3, ctypes.c_uint(0xFFFFFFFF), 0)
exchange("after close_range")
LIBC.closefrom(3)
exchange("after closefrom")
LIBC.syscall(ctypes.c_long(436), ctypes.c_ulong(3), ctypes.c_ulong(0xFFFFFFFF), ctypes.c_ulong(0))
exchange("after the system call close_range")
one_by_one()
exchange("after each close")
as_listed()
exchange("after what /proc lists")
