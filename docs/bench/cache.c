/*
 * Moves bytes between the two ends of a connection in one thread, for a tool that counts what a program does to the
 * caches: cc -O2 -I dist/include -o cache docs/bench/cache.c; see docs/bench.md.
 *
 *     cache plain|granted|borrowed touch|leave ROUNDS
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "shunt.h"

#define SIZE ((size_t)64 << 10)
#define BUFFERS 1024 /* 64 MiB: more than the caches hold */

static uint64_t sum(const uint64_t *at, size_t bytes)
{
    uint64_t all = 0;
    for (size_t i = 0; i < bytes / sizeof *at; i++)
        all += at[i];
    return all;
}

static void need(int is_right, const char *what)
{
    if (!is_right) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    need(argc == 4, "three arguments");
    const int granted = strcmp(argv[1], "plain") != 0, borrowed = !strcmp(argv[1], "borrowed");
    const int touch = !strcmp(argv[2], "touch"), one = 1;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);

    need(!bind(listener, (void *)&at, len) && !listen(listener, 1), "listen");
    getsockname(listener, (void *)&at, &len);
    need(!connect(c, (void *)&at, len), "connect");
    int s = accept(listener, NULL, NULL);
    setsockopt(c, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one);

    char *memory = shunt_alloc(BUFFERS * SIZE), *into = aligned_alloc(4096, SIZE);
    static struct shunt_pieces pieces;
    uint64_t total = 0, copied = 0;
    memset(memory, 1, BUFFERS * SIZE);
    memset(into, 1, SIZE);
    for (long round = -8; round < atol(argv[3]); round++) {
        char *from = memory + (size_t)(round + 8) % BUFFERS * SIZE;
        /* The first rounds are by turns, so that the connection is shunted and the memory known. */
        need(round >= 0 || (send(s, "x", 1, 0) == 1 && recv(c, into, 1, 0) == 1), "answer");
        for (size_t sent = 0, got = 0; got < SIZE;) {
            if (sent < SIZE) {
                ssize_t n = send(c, from + sent, SIZE - sent, MSG_DONTWAIT | (granted ? MSG_ZEROCOPY : 0));
                need(n > 0 || errno == EAGAIN, "send");
                sent += n > 0 ? (size_t)n : 0;
            }
            ssize_t n = borrowed ? shunt_recv_borrow(s, &pieces, into, SIZE, MSG_DONTWAIT)
                                 : recv(s, into, SIZE - got, MSG_DONTWAIT);
            need(n > 0 || errno == EAGAIN, "recv");
            if (n <= 0)
                continue;
            if (touch && !borrowed)
                total += sum((uint64_t *)into, (size_t)n);
            for (int i = 0; touch && borrowed && i < pieces.count; i++)
                total += sum(pieces.piece[i].iov_base, pieces.piece[i].iov_len);
            need(!borrowed || !shunt_recv_release(s, &pieces, (size_t)n), "release");
            got += (size_t)n;
        }
        if (granted) {
            struct pollfd p = { .fd = c };
            char control[256];
            struct msghdr msg = { .msg_control = control, .msg_controllen = sizeof control };
            poll(&p, 1, 1000);
            while (recvmsg(c, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
                struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
                copied += head && ((unsigned char *)CMSG_DATA(head))[6];
                msg.msg_controllen = sizeof control;
            }
        }
    }
    printf("%llu %llu\n", (unsigned long long)total, (unsigned long long)copied);
    return 0;
}
