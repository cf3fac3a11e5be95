/* A signal handler jumps out of calls (siglongjmp), at each point of the library. What the call had is given
 * back: other threads and calls go on with the connection, it ends as it should, and so do others.
 *
 * The bytes of a call that is left so may be lost, as over TCP. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

static int (*plan)(const char *);
static const char *(*names)(void);
static unsigned long (*passed)(const char *);

static struct sockaddr_in address = {.sin_family = AF_INET};
static int listener, control[2];
static sigjmp_buf out;
static __thread volatile sig_atomic_t may_jump; /* this thread may */
static volatile sig_atomic_t jumps;
static char what[200], bulk[700000], sink[700000];

static void handler(int signal) {
    (void)signal;
    if (may_jump) {
        may_jump = 0;
        jumps++;
        siglongjmp(out, 1);
    }
}

static void stuck(int signal) {
    (void)signal;
    dprintf(2, "stuck: %s\n", what);
    abort();
}

static void fail(const char *how) {
    fprintf(stderr, "%s: %s (%s)\n", what, how, strerror(errno));
    exit(1);
}

static int exchange(int from, int to) {
    char got[5];
    return send(from, "hello", 5, MSG_NOSIGNAL) == 5 && recv(to, got, 5, MSG_WAITALL) == 5
        && memcmp(got, "hello", 5) == 0;
}

static void open_pair(int pair[2]) {
    pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(pair[0], (struct sockaddr *)&address, sizeof address) != 0) fail("connect");
    pair[1] = accept(listener, NULL, NULL);
    for (int i = 0; i < 4; i++)
        if (!exchange(pair[0], pair[1]) || !exchange(pair[1], pair[0])) fail("warm up");
}

/* Reads all that comes, until the end. */
static void *drain(void *fd) {
    ssize_t n;
    static __thread char buffer[60000];
    while ((n = recv(*(int *)fd, buffer, sizeof buffer, 0)) > 0) {}
    return NULL;
}

static void *fill(void *fd) {
    for (size_t done = 0; done < sizeof bulk;) {
        ssize_t n = send(*(int *)fd, bulk + done, sizeof bulk - done, MSG_NOSIGNAL);
        if (n <= 0) break;
        done += (size_t)n;
    }
    return NULL;
}

static void *fill_all(void *fd) {
    fill(fd);
    shutdown(*(int *)fd, SHUT_WR);
    return NULL;
}

enum { SEND, RECV, POLL, SELECT, EPOLL, DUP, SHUTDOWN, CLOSE, CONNECT, KINDS };
static const char *const KIND[] = {"send", "recv", "poll", "select", "epoll", "dup", "shutdown", "close", "connect"};

/* What the handler jumps out of. */
static void work(int kind, int fd, int *more) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    fd_set set;
    switch (kind) {
    case SEND: fill(&fd); break;
    case RECV: recv(fd, sink, sizeof sink, MSG_WAITALL); break;
    case POLL: poll(&one, 1, 5000); recv(fd, sink, 100, 0); break;
    case SELECT:
        FD_ZERO(&set);
        FD_SET(fd, &set);
        select(fd + 1, &set, NULL, NULL, NULL);
        break;
    case EPOLL:
        *more = epoll_create1(EPOLL_CLOEXEC);
        epoll_ctl(*more, EPOLL_CTL_ADD, fd, &event);
        epoll_wait(*more, &event, 1, 5000);
        break;
    case DUP: *more = dup(fd); send(*more, "x", 1, MSG_NOSIGNAL); break;
    case SHUTDOWN: shutdown(fd, SHUT_WR); break;
    case CLOSE: close(dup(fd)); break;
    case CONNECT:
        *more = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        connect(*more, (struct sockaddr *)&address, sizeof address);
        send(*more, "x", 1, MSG_NOSIGNAL);
        break;
    }
}

/* One connection, and a jump at the Nth pass of a point. True when there was one. */
static int jump_at(int kind, const char *point, int n) {
    volatile int more = -1;
    int pair[2], left;
    open_pair(pair);
    pthread_t peer;
    snprintf(what, sizeof what, "%s, %s@%d", KIND[kind], point, n);
    alarm(10);
    volatile int before = (int)jumps;
    if (pthread_create(&peer, NULL, kind == SEND ? drain : fill_all, &pair[1]) != 0) fail("a thread");
    /* The handler is this thread's alone: what the point interrupts in the other one goes on. */
    char text[200];
    snprintf(text, sizeof text, "%s=signal:%d@%d", point, SIGUSR1, n);
    if (*point != 0 && plan(text) != 0) fail("a plan");
    if (sigsetjmp(out, 1) == 0) {
        may_jump = 1;
        work(kind, pair[0], (int *)&more);
    }
    may_jump = 0;
    if (*point != 0) plan("");
    /* It is the same connection, and nothing is held. */
    struct pollfd one = {.fd = pair[0], .events = POLLIN | POLLOUT};
    if (poll(&one, 1, 0) < 0) fail("poll");
    if (recv(pair[0], text, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EINTR) fail("recv");
    if (send(pair[0], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR) fail("send");
    int copy = dup(pair[0]);
    if (copy < 0 || close(copy) != 0) fail("dup");
    shutdown(pair[0], SHUT_WR);
    if (kind != SEND) drain(&pair[0]);
    if (pthread_join(peer, NULL) != 0) fail("join");
    left = more;
    if (left >= 0) close(left);
    close(pair[0]);
    if (kind != SEND) drain(&pair[1]);
    close(pair[1]);
    if (kind == CONNECT) {
        int last;
        /* What the call had made is there, or not. */
        struct pollfd waiting = {.fd = listener, .events = POLLIN};
        while (poll(&waiting, 1, 0) == 1 && (last = accept(listener, NULL, NULL)) >= 0) close(last);
    }
    if (!exchange(control[0], control[1]) || !exchange(control[1], control[0])) fail("the other connection");
    return (int)jumps != before;
}

/* Arguments: a kind and a point, for that one alone. */
int main(int argc, char **argv) {
    plan = (int (*)(const char *))dlsym(RTLD_DEFAULT, "shunt_points");
    names = (const char *(*)(void))dlsym(RTLD_DEFAULT, "shunt_points_names");
    passed = (unsigned long (*)(const char *))dlsym(RTLD_DEFAULT, "shunt_points_passed");
    if (!plan || !names || !passed) fail("no points");
    signal(SIGALRM, stuck);
    signal(SIGPIPE, SIG_IGN);
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, len) != 0 || listen(listener, 99) != 0) fail("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &len) != 0) fail("a name");
    open_pair(control);
    for (int kind = 0; kind < KINDS; kind++) {
        /* Which points there are on its way. */
        plan("");
        jump_at(kind, "", 0);
        char list[9000], *rest = list, *point;
        snprintf(list, sizeof list, "%s", names());
        unsigned long counts[200] = {0};
        int i = 0;
        while ((point = strsep(&rest, ",")) && i < 200) counts[i++] = passed(point);
        rest = list;
        snprintf(list, sizeof list, "%s", names());
        i = 0;
        int done = 0;
        while ((point = strsep(&rest, ",")) && i < 200) {
            unsigned long all = counts[i++];
            if (argc > 2 && (strcmp(argv[1], KIND[kind]) != 0 || strcmp(argv[2], point) != 0)) continue;
            for (unsigned long n = 1; n <= all && n <= 3; n++) done += jump_at(kind, point, (int)n);
        }
        printf("%s: %d jumps\n", KIND[kind], done);
    }
    return 0;
}
