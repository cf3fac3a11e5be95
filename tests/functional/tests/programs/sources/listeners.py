# Listens in ways in which clients don't find it, and has `shunt list` say what it says of that: listeners.py SHUNT WAY
import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
import time

shunt, way = sys.argv[1:]
environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def listen():
    return socket.create_server(("127.0.0.1", 0))


def listed():
    command = [shunt, "list", "--json"]
    report = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    listeners = json.loads(report)["listeners_unregistered"]
    assert all(l["pid"] == os.getpid() and l["program"].startswith("python3") for l in listeners), listeners
    return {(l["address"], l["fd"]): l["reason"] for l in listeners}


def said(*sockets):
    """What has to be listed of these."""
    return {("127.0.0.1:%d" % s.getsockname()[1], s.fileno()) for s in sockets}


def tell(expected, *sockets):
    now = listed()
    assert now == dict.fromkeys(said(*sockets), expected), (now, expected, said(*sockets))
    print(expected if sockets else "none")


def refused():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    known = [listen() for _ in range(1024)]
    others = [listen() for _ in range(3)]
    tell("refused", *others)
    # A duplicate is the same listener.
    duplicate = others[0].dup()
    others[1].close()
    tell("refused", others[0], others[2])
    os.dup2(known[0].fileno(), others[2].fileno())
    tell("refused", others[0])
    at = others[0].fileno()
    others[0].close()
    assert set(listed()) == {("127.0.0.1:%d" % duplicate.getsockname()[1], at)}
    duplicate.close()
    tell("refused")
    # There is room by now.
    again = listen()
    tell("refused", again)
    known.pop().close()
    deadline = time.monotonic() + 60
    while listed() and time.monotonic() < deadline:
        again.listen()
    tell("refused")


def bypassed(bypass):
    before = [listen() for _ in range(2)]
    tell("bypassed")
    bypass()
    tell("bypassed", *before)
    return before


def deep():
    before = bypassed(lambda: ctypes.CDLL("libcrypt.so.1", mode=os.RTLD_NOW | os.RTLD_DEEPBIND))
    after = listen()
    tell("bypassed", *before, after)
    before.pop().close()
    tell("bypassed", *before, after)
    # Both ends are counted.
    with socket.create_connection(after.getsockname()), after.accept()[0]:
        pass


class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction))]


def filtered():
    everything = Program(1, ctypes.pointer(Instruction(0x06, 0, 0, 0x7FFF0000)))
    prctl = ctypes.CDLL(None).prctl
    set_filter = lambda: prctl(22, 2, ctypes.byref(everything))
    assert prctl(38, 1, 0, 0, 0) == 0
    bypassed(lambda: set_filter() == 0 or sys.exit("no filter"))


def away():
    listener = listen()
    print("listening", flush=True)
    deadline = time.monotonic() + 60
    # Who connects begins the conversation, once there is an agent.
    while not (now := listed()) and time.monotonic() < deadline:
        socket.create_connection(listener.getsockname()).close()
    tell("no-agent", listener)
    # Who accepts registers the listener.
    while listed() and time.monotonic() < deadline:
        socket.create_connection(listener.getsockname()).close()
        listener.accept()[0].close()
    tell("no-agent")


{"refused": refused, "deep": deep, "filtered": filtered, "away": away}[way]()
