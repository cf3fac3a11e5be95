# A server, and a client of which one connection lasts, some are over at once, and then one more lasts.
import select
import signal
import socket
import sys

role, address = sys.argv[1:]

if role == "server":
    listener = socket.create_server((address, 8000))
    print("listening", flush=True)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    peers = {}
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                peer, _ = listener.accept()
                peers[peer.fileno()] = peer
                poll.register(peer, select.POLLIN)
            elif data := peers[fd].recv(100):
                peers[fd].sendall(data)
            else:
                poll.unregister(fd)
                peers.pop(fd).close()


def ask(peer, times):
    for _ in range(times):
        peer.sendall(b"?")
        peer.recv(1)


def connect():
    return socket.create_connection((address, 8000))


first = connect()
ask(first, 8)
for _ in range(3):
    with connect() as short:
        ask(short, 1)
ask(first, 200)
second = connect()
ask(second, 8)
print("ports", first.getsockname()[1], second.getsockname()[1], flush=True)
signal.pause()
