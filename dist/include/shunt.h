/* What a program can ask of Shunt that knows of it. Nothing is linked: without Shunt these do what libc would. */
#ifndef SHUNT_H
#define SHUNT_H

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The first definition of a name among all that is loaded: that of libshunt.so, which `shunt run` preloads. */
static inline void *shunt_symbol_(const char *name)
{
    return dlsym((void *)0 /* RTLD_DEFAULT */, name);
}

/*
 * Memory to send from without copies: what a call with MSG_ZEROCOPY sends from it over a shunted connection is
 * read by the peer where it is. At least LEN bytes, zero, at the start of a page. NULL, and errno is ENOMEM, when
 * there is none to be had; a program can have 64 of them at a time. See shunt_alloc(3).
 */
static inline void *shunt_alloc(size_t len)
{
    void *(*alloc)(size_t) = (void *(*)(size_t))shunt_symbol_("shunt_alloc");
    const size_t page = 4096;
    void *memory;

    if (alloc)
        return alloc(len);
    if (len > (size_t)-1 - page) {
        errno = ENOMEM;
        return NULL;
    }
    len = (len + page - 1) / page * page;
    memory = aligned_alloc(page, len ? len : page);
    return memory ? memset(memory, 0, len) : NULL;
}

/*
 * Gives memory of shunt_alloc back. What was sent from it and not read yet is copied first, and arrives. 0, or -1 and
 * errno is EINVAL for an address that shunt_alloc has not returned.
 */
static inline int shunt_free(void *memory)
{
    int (*give_back)(void *) = (int (*)(void *))shunt_symbol_("shunt_free");

    if (give_back)
        return give_back(memory);
    free(memory);
    return 0;
}

/* Control messages of recvmsg and sendmsg that are Shunt's: kernel TCP does not look at them. */
#define SHUNT_LEVEL 0x5368756e
#define SHUNT_BORROW 1
#define SHUNT_RELEASE 2
#define SHUNT_HINTS 3

/* How many pieces a call of shunt_recv_borrow tells of at most. */
#define SHUNT_PIECES 16

/* Where received bytes are. */
struct shunt_pieces {
    struct cmsghdr control_;
    struct iovec piece[SHUNT_PIECES];
    int count;
    /* Bytes that were borrowed and not given back. */
    size_t left;
};

/*
 * Looks at the next bytes of a connection where they are; they stay the next ones until shunt_recv_release. Bytes that
 * cannot be looked at in place are copied to BUFFER, up to LEN of them. Returns how many there are, in AT->count pieces;
 * 0 at the end of file; -1 and errno as recv(2). FLAGS: 0 or MSG_DONTWAIT. See shunt_recv_borrow(3).
 */
static inline ssize_t shunt_recv_borrow(int fd, struct shunt_pieces *at, void *buffer, size_t len, int flags)
{
    struct iovec copied = { buffer, len };
    struct msghdr msg;
    ssize_t n;

    memset(&msg, 0, sizeof msg);
    msg.msg_iov = &copied;
    msg.msg_iovlen = 1;
    msg.msg_control = at;
    msg.msg_controllen = at->control_.cmsg_len = CMSG_LEN(sizeof at->piece);
    at->control_.cmsg_level = SHUNT_LEVEL;
    at->control_.cmsg_type = SHUNT_BORROW;
    at->count = 0;
    at->left = 0;
    n = recvmsg(fd, &msg, flags | MSG_PEEK);
    if (n <= 0)
        return n;
    at->left = (size_t)n;
    if (msg.msg_controllen > CMSG_LEN(0) && at->control_.cmsg_level == SHUNT_LEVEL) {
        at->count = (int)((msg.msg_controllen - CMSG_LEN(0)) / sizeof copied);
    } else {
        at->piece[0].iov_base = buffer;
        at->piece[0].iov_len = (size_t)n;
        at->count = 1;
    }
    return n;
}

/*
 * Goes on behind the next LEN bytes of those that were borrowed last. 0, or -1 and errno is ESTALE when they may have
 * changed while they were looked at, so that they have to be borrowed and looked at once more; EINVAL for more than are left.
 */
static inline int shunt_recv_release(int fd, struct shunt_pieces *at, size_t len)
{
    struct { struct cmsghdr control; size_t len; } request;
    struct iovec none = { NULL, len };
    struct msghdr msg;
    ssize_t n;

    if (len == 0)
        return 0;
    if (len > at->left) {
        errno = EINVAL;
        return -1;
    }
    memset(&msg, 0, sizeof msg);
    memset(&request, 0, sizeof request);
    msg.msg_iov = &none;
    msg.msg_iovlen = 1;
    msg.msg_control = &request;
    msg.msg_controllen = request.control.cmsg_len = CMSG_LEN(sizeof len);
    request.control.cmsg_level = SHUNT_LEVEL;
    request.control.cmsg_type = SHUNT_RELEASE;
    n = recvmsg(fd, &msg, MSG_TRUNC | MSG_DONTWAIT);
    if (n >= 0 && (size_t)n != len)
        errno = EINVAL; /* Somebody else has taken some of them. */
    at->left = n >= 0 && (size_t)n == len ? at->left - len : 0;
    return n >= 0 && (size_t)n == len ? 0 : -1;
}

/* What is to become of a buffer: what pays, a copy, or a grant however small it is. */
#define SHUNT_AUTO 0
#define SHUNT_COPY 1
#define SHUNT_GRANT 2

/* How many buffers a call of shunt_sendmsg takes at most. */
#define SHUNT_BUFFERS 63

/* For FLAGS of shunt_sendmsg: nobody wants to hear that the call is complete. */
#define SHUNT_QUIET 1

/*
 * sendmsg(2) with MSG_ZEROCOPY, a hint per buffer of MSG, and FLAGS of Shunt's (what is sent with SHUNT_QUIET is copied
 * on a connection that is not shunted). MSG has no control messages: -1 and errno is EINVAL if it has some, or more than
 * SHUNT_BUFFERS buffers. See shunt_sendmsg(3).
 */
static inline ssize_t shunt_sendmsg(int fd, const struct msghdr *msg, int socket_flags, const unsigned char *hints, int flags)
{
    struct { struct cmsghdr control; unsigned char data[1 + SHUNT_BUFFERS]; } request;
    struct msghdr hinted = *msg;

    if (msg->msg_controllen || msg->msg_iovlen > SHUNT_BUFFERS || flags & ~SHUNT_QUIET) {
        errno = EINVAL;
        return -1;
    }
    memset(&request, 0, sizeof request);
    request.control.cmsg_len = CMSG_LEN(sizeof request.data);
    request.control.cmsg_level = SHUNT_LEVEL;
    request.control.cmsg_type = SHUNT_HINTS;
    request.data[0] = (unsigned char)flags;
    if (hints)
        memcpy(request.data + 1, hints, msg->msg_iovlen);
    hinted.msg_control = &request;
    hinted.msg_controllen = sizeof request;
    return sendmsg(fd, &hinted, flags & SHUNT_QUIET ? socket_flags : socket_flags | MSG_ZEROCOPY);
}

#endif
