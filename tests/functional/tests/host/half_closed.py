# Both ends of a connection, of which the client ends its direction. It reads nothing more and is killed, or it reads all
# and closes in good order; before it does, a program without Shunt may have it, too ("handed"), so that it is TCP again.
import errno
import os
import select
import signal
import socket
import subprocess
import sys

role, address, how = sys.argv[1:]
signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def say(*words):
    print(*words, flush=True)


def name(error):
    return errno.errorcode[error.errno]


def hand_over(peer):
    look = "import socket, sys; peer = socket.socket(fileno=int(sys.argv[1])); "
    look += "print('linger2', peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2))"
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    fd = peer.fileno()
    subprocess.run([sys.executable, "-c", look, str(fd)], env=plain, pass_fds=[fd], check=True)


orderly = ("close", "handed")
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
        if how in orderly:
            peer.recv(4, socket.MSG_WAITALL)
            if how == "handed":
                hand_over(peer)
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


if how in orderly:
    peer.sendall(b"last")
    poll = select.poll()
    poll.register(peer, 0)
    say("told", poll.poll(300))
else:
    fill()
say("full")
if how == "blocking" or how in orderly:
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
