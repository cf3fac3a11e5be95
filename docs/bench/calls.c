/*
 * What calls take: both ends of a connection in one thread, so that neither waits and all stays in one core's caches:
 * cc -O2 -I dist/include -o calls docs/bench/calls.c; see docs/bench.md.
 *
 *     calls plain|granted|pinned|borrowed SIZE BURST
 *
 * Sends so many messages, receives them, and hears what is complete. Tells the nanoseconds that each takes per message, the
 * shortest of 500 times: what else the machine does makes it longer only.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "shunt.h"

#define BUFFERS 16
#define TIMES 500
#define BURSTS 20

enum { SEND, RECEIVE, COMPLETE, PARTS };

static void need(int is_right, const char *what)
{
    if (!is_right) {
        perror(what);
        exit(1);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void receive(int s, int borrowed, char *into, size_t room, size_t all)
{
    static struct shunt_pieces pieces;
    while (all > 0) {
        /* What is lent may be more than there is room for. */
        ssize_t n = borrowed ? shunt_recv_borrow(s, &pieces, into, room, 0) : recv(s, into, room, 0);
        need(n > 0, "recv");
        need(!borrowed || !shunt_recv_release(s, &pieces, (size_t)n), "release");
        all -= (size_t)n;
    }
}

static void complete(int c)
{
    char control[256];
    struct msghdr msg = { .msg_control = control, .msg_controllen = sizeof control };
    while (recvmsg(c, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0)
        msg.msg_controllen = sizeof control;
}

int main(int argc, char **argv)
{
    need(argc == 4, "three arguments");
    const int borrowed = !strcmp(argv[1], "borrowed"), private = !strcmp(argv[1], "pinned");
    const int flags = strcmp(argv[1], "plain") ? MSG_ZEROCOPY : 0, one = 1;
    const size_t size = strtoul(argv[2], NULL, 0), burst = strtoul(argv[3], NULL, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);

    need(!bind(listener, (void *)&at, len) && !listen(listener, 1), "listen");
    getsockname(listener, (void *)&at, &len);
    need(!connect(c, (void *)&at, len), "connect");
    int s = accept(listener, NULL, NULL);
    setsockopt(c, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one);
    setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);

    char *memory = private ? malloc(BUFFERS * size) : shunt_alloc(BUFFERS * size);
    char *into = malloc(size);
    memset(memory, 1, BUFFERS * size);
    memset(into, 1, size);
    /* The first rounds are by turns, so that the connection is shunted and the memory known. */
    for (int round = 0; round < 16; round++) {
        need(send(s, "x", 1, 0) == 1 && recv(c, into, 1, 0) == 1, "answer");
        need(send(c, memory, size, flags) == (ssize_t)size, "send");
        receive(s, borrowed, into, size, size);
        complete(c);
    }
    double best[PARTS] = { 1e18, 1e18, 1e18 };
    for (int time = 0; time < TIMES; time++) {
        double took[PARTS] = { 0 };
        for (int round = 0; round < BURSTS; round++) {
            double t[PARTS + 1] = { now() };
            for (size_t i = 0; i < burst; i++) {
                char *from = memory + ((size_t)round * burst + i) % BUFFERS * size;
                need(send(c, from, size, flags) == (ssize_t)size, "send");
            }
            t[1] = now();
            receive(s, borrowed, into, size, burst * size);
            t[2] = now();
            if (flags)
                complete(c);
            t[3] = now();
            for (int part = 0; part < PARTS; part++)
                took[part] += t[part + 1] - t[part];
        }
        for (int part = 0; part < PARTS; part++)
            best[part] = took[part] < best[part] ? took[part] : best[part];
    }
    for (int part = 0; part < PARTS; part++)
        printf("%s %.1f", part ? "," : "", best[part] / BURSTS / (double)burst);
    printf(" ns: send, receive, complete\n");
    return 0;
}
