/*
 * A client and a server that know of Shunt: requests whose headers are copied and whose bodies are granted, looked at in
 * place by the server. How the bytes came does not matter to either.
 */
#include <arpa/inet.h>
#include <shunt.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BODY = 128 << 10, CALLS = 200, BUFFERS = 4 };

struct header { uint32_t call, length; };

#define CHECK(what) do { if (!(what)) { perror(#what); return 1; } } while (0)

static unsigned char byte_of(uint32_t call, uint32_t at)
{
    return (unsigned char)(call * 7 + at + at / 4096);
}

/* Looks at LEN bytes of the body of a call, from AT on. */
static int look(int fd, uint32_t call, uint32_t at, uint32_t len, unsigned char *room, long *in_place)
{
    struct shunt_pieces pieces;
    uint32_t end = at + len;

    while (at < end) {
        ssize_t n = shunt_recv_borrow(fd, &pieces, room, end - at, 0);
        uint32_t seen = 0, wrong = 0;

        CHECK(n > 0);
        for (int i = 0; i < pieces.count; i++) {
            const unsigned char *bytes = pieces.piece[i].iov_base;

            if (bytes != room)
                *in_place += 1;
            for (size_t b = 0; b < pieces.piece[i].iov_len && at + seen < end; b++, seen++)
                wrong += bytes[b] != byte_of(call, at + seen);
        }
        if (shunt_recv_release(fd, &pieces, seen)) {
            CHECK(errno == ESTALE);
            continue;
        }
        if (wrong) {
            fprintf(stderr, "%u wrong bytes of call %u\n", wrong, call);
            return 1;
        }
        at += seen;
    }
    return 0;
}

static int serve(int fd)
{
    static unsigned char room[BODY];
    struct shunt_pieces end;
    struct header header;
    long in_place = 0;

    CHECK(fd >= 0);
    for (uint32_t call = 0; call < CALLS; call++) {
        CHECK(recv(fd, &header, sizeof header, MSG_WAITALL) == sizeof header);
        CHECK(header.call == call);
        /* In two parts: the second begins in the middle of a grant. */
        if (look(fd, call, 0, header.length / 3, room, &in_place)
            || look(fd, call, header.length / 3, header.length - header.length / 3, room, &in_place))
            return 1;
        CHECK(send(fd, &header, sizeof header, 0) == sizeof header);
    }
    CHECK(shunt_recv_borrow(fd, &end, room, 1, 0) == 0);
    CHECK(shunt_recv_release(fd, &end, 1) < 0 && errno == EINVAL);
    printf("%s\n", in_place ? "in place" : "copied");
    return 0;
}

int main(void)
{
    static const unsigned char hints[] = { SHUNT_COPY, SHUNT_GRANT, SHUNT_AUTO };
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, status;
    unsigned char *memory = shunt_alloc((size_t)BUFFERS * BODY);
    struct header header, answer;

    CHECK(memory && !bind(listener, (struct sockaddr *)&at, len) && !listen(listener, 1));
    CHECK(!getsockname(listener, (struct sockaddr *)&at, &len));
    if (!fork())
        return serve(accept(listener, NULL, NULL));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one));
    CHECK(!connect(fd, (struct sockaddr *)&at, len));
    for (uint32_t call = 0; call < CALLS; call++) {
        /* The answer says that the buffer is free: nobody need say so once more. */
        unsigned char *body = memory + (size_t)(call % BUFFERS) * BODY;
        struct iovec parts[] = { { &header, sizeof header }, { body, 4096 }, { body + 4096, BODY - 4096 } };
        struct msghdr msg = { .msg_iov = parts, .msg_iovlen = 3 };

        header = (struct header){ .call = call, .length = BODY };
        for (uint32_t i = 0; i < BODY; i++)
            body[i] = byte_of(call, i);
        for (size_t left = sizeof header + BODY; left;) {
            ssize_t n = shunt_sendmsg(fd, &msg, 0, hints + (3 - msg.msg_iovlen), SHUNT_QUIET);

            CHECK(n > 0);
            left -= (size_t)n;
            while (n > 0 && (size_t)n >= msg.msg_iov->iov_len) {
                n -= (ssize_t)msg.msg_iov->iov_len;
                msg.msg_iov++, msg.msg_iovlen--;
            }
            if (n > 0) {
                msg.msg_iov->iov_base = (char *)msg.msg_iov->iov_base + n;
                msg.msg_iov->iov_len -= (size_t)n;
            }
        }
        CHECK(recv(fd, &answer, sizeof answer, MSG_WAITALL) == sizeof answer && answer.call == call);
    }
    /* Nobody was told of anything. */
    CHECK(recv(fd, &answer, sizeof answer, MSG_ERRQUEUE) < 0 && errno == EAGAIN);
    CHECK(shunt_sendmsg(fd, &(struct msghdr){ .msg_iovlen = SHUNT_BUFFERS + 1 }, 0, NULL, 0) < 0 && errno == EINVAL);
    CHECK(!close(fd) && !shunt_free(memory));
    CHECK(wait(&status) > 0 && !status);
    return 0;
}
