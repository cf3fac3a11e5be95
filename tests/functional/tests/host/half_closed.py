# Both ends of a connection, of which the client ends its direction. It reads nothing more and is killed, or it reads all
# and closes in good order.
import errno
import select
import signal
import socket
import sys

role, address, how = sys.argv[1:]
signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def say(*words):
    print(*words, flush=True)


def name(error):
    return errno.errorcode[error.errno]


if role == "client":
    with socket.create_connection((address, 8000)) as peer:
        for _ in range(4):
            peer.sendall(b"?")
            peer.recv(1)
        seconds = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2)
        peer.shutdown(socket.SHUT_WR)
        say("linger2", seconds, peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, seconds + 7)
        say("then", peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2))
        if how == "close":
            peer.recv(4, socket.MSG_WAITALL)
            peer.close()
        signal.pause()

listener = socket.create_server((address, 8000))
say("listening")
peer, _ = listener.accept()
while peer.recv(1):
    peer.sendall(b"!")
say("half-closed")
peer.setblocking(False)


def fill():
    try:
        while True:
            peer.send(bytes(65536))
    except BlockingIOError:
        pass


if how == "close":
    peer.sendall(b"last")
    poll = select.poll()
    poll.register(peer, 0)
    say("told", poll.poll(300))
else:
    fill()
say("full")
if how in ("blocking", "close"):
    poll = None
elif how == "poll":
    poll = select.poll()
    poll.register(peer, select.POLLOUT)
else:
    poll = select.epoll()
    poll.register(peer, select.EPOLLOUT | select.EPOLLET)
while poll:
    # The kernel of the peer may have taken more meanwhile.
    [(_, events)] = poll.poll()
    if events & ~select.POLLOUT:
        say("told", hex(events))
        break
    fill()
peer.setblocking(True)
try:
    while True:
        peer.sendall(bytes(65536))
except OSError as error:
    say(name(error))
try:
    say("read", len(peer.recv(1)))
except OSError as error:
    say("read", name(error))
