#!/bin/sh
# nginx as systemd runs it: shunted, looked at, captured, and back on TCP. As root, with nginx, curl and tshark installed.
set -ex

# Give the service the library and the agent for the host.
shunt enable nginx --restart
export SHUNT_RUN_DIR=/run/shunt

# Begin a capture, and send three requests over one connection.
shunt capture -w /tmp/request.pcapng port 80 &
until [ -s /tmp/request.pcapng ]; do sleep 0.1; done
shunt run -- curl -sS -o /dev/null http://127.0.0.1/ -o /dev/null http://127.0.0.1/ -o /dev/null http://127.0.0.1/

# Both ends count as connections_shunted; the capture shows the requests, which tcpdump does not see.
shunt stats
kill -INT $!; wait
tshark -r /tmp/request.pcapng

# Undo: the service runs without the library, and no agent is left.
shunt disable nginx --restart
systemctl stop shunt-host.socket shunt-host.service
rm -r /tmp/request.pcapng /run/shunt
