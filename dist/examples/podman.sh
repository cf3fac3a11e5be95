#!/bin/sh
# A web server in a container, and a client on the host: shunted, looked at, captured, and back on TCP. As root, with podman
# and curl installed. IMAGE is any image with a server of HTTP at port 80 that uses glibc.
set -ex
export SHUNT_RUN_DIR=/run/shunt

# An agent for the host, and a device that gives containers the library and the agent.
shunt agent --host --detach
mkdir -p /run/cdi && shunt cdi generate --output /run/cdi/shunt.json

# Capture the next eight packets of nginx, start the container, and send two requests over one connection.
shunt capture --count 8 program nginx &
podman run --detach --name web --publish 127.0.0.1:8080:80 --device shunt.dev/socket=default "${IMAGE:-docker.io/library/nginx}"
shunt run -- curl -sS --retry 9 --retry-connrefused -o /dev/null http://127.0.0.1:8080/ -o /dev/null http://127.0.0.1:8080/

# Both ends count as connections_shunted.
wait; shunt stats

# Undo: neither container nor agent is left.
podman rm --force web
shunt agent --stop
rm -r /run/cdi/shunt.json /run/shunt
