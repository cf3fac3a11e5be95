/* A library that uses a connection of the program's: by the calls that it was linked with, and by what it finds
   next behind itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE = 20000 };

int loaded_poll(int fd) {
    struct pollfd look = {fd, POLLIN, 0};
    return poll(&look, 1, PATIENCE);
}

int loaded_epoll(int fd) {
    int instance = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN}, found;
    epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
    int count = epoll_wait(instance, &found, 1, PATIENCE);
    close(instance);
    return count;
}

#if defined TABLE
static ssize_t (*const receive)(int, void *, size_t, int) = recv;
static ssize_t (*const give)(int, const void *, size_t, int) = send;
#elif defined LOOKS
static void *libcs(const char *name) { return dlsym(dlopen("libc.so.6", RTLD_NOW), name); }
#define receive ((ssize_t (*)(int, void *, size_t, int))libcs("recv"))
#define give ((ssize_t (*)(int, const void *, size_t, int))libcs("send"))
#else
#define receive recv
#define give send
#endif

ssize_t loaded_recv(int fd, void *to, size_t length) { return receive(fd, to, length, MSG_DONTWAIT); }

ssize_t loaded_send(int fd, const void *from, size_t length) { return give(fd, from, length, 0); }

#ifdef WRAPS
/* Wraps a function, and finds that of libc itself by its handle, not behind itself. */
static int wrapped;

ssize_t recv(int fd, void *to, size_t length, int flags) {
    ssize_t (*behind)(int, void *, size_t, int) = dlsym(dlopen("libc.so.6", RTLD_NOW), "recv");
    wrapped++;
    return behind(fd, to, length, flags);
}

int loaded_wrapped(void) { return wrapped; }
#endif
