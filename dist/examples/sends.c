/* Sends a file's worth of bytes to itself from memory of shunt.h, and says how the calls were completed. */
#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <poll.h>
#include <shunt.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 256 << 10, CALLS = 40 };

#define CHECK(what) do { if (!(what)) { perror(#what); return 1; } } while (0)

static int receive(int fd)
{
    char *buffer = malloc(SIZE);

    for (int call = 0; call < CALLS; call++) {
        CHECK(recv(fd, buffer, SIZE, MSG_WAITALL) == SIZE);
        for (int i = 0; i < SIZE; i++)
            CHECK(buffer[i] == (char)(call + i));
        CHECK(send(fd, "x", 1, 0) == 1);
    }
    return 0;
}

static int completed(int fd)
{
    union { char room[128]; struct cmsghdr align; } control;
    struct msghdr msg = { .msg_control = control.room, .msg_controllen = sizeof control.room };
    struct pollfd wait = { .fd = fd };
    struct sock_extended_err report;

    while (recvmsg(fd, &msg, MSG_ERRQUEUE) < 0) {
        CHECK(errno == EAGAIN);
        CHECK(poll(&wait, 1, 10000) == 1);
        msg.msg_controllen = sizeof control.room;
    }
    memcpy(&report, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof report);
    CHECK(report.ee_origin == SO_EE_ORIGIN_ZEROCOPY);
    return 0;
}

int main(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, status;
    char *buffer = shunt_alloc(SIZE), byte;

    CHECK(buffer && !((size_t)buffer % 4096) && !buffer[SIZE - 1]);
    CHECK(!bind(listener, (struct sockaddr *)&at, len) && !listen(listener, 1));
    CHECK(!getsockname(listener, (struct sockaddr *)&at, &len));
    if (!fork())
        return receive(accept(listener, NULL, NULL));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one));
    CHECK(!connect(fd, (struct sockaddr *)&at, len));
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < SIZE; i++)
            buffer[i] = (char)(call + i);
        for (int sent = 0, n; sent < SIZE; sent += n) {
            CHECK((n = (int)send(fd, buffer + sent, SIZE - sent, MSG_ZEROCOPY)) > 0);
            if (completed(fd))
                return 1;
        }
        CHECK(recv(fd, &byte, 1, 0) == 1);
    }
    CHECK(!shunt_free(buffer) && !shunt_free(NULL));
    CHECK(wait(&status) > 0 && !status);
    puts("all sent");
    return 0;
}
