/* A connection that a library is given, or functions of libc that the program has looked up: loader WAY LIBRARY */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef ssize_t receive_function(int, void *, size_t, int);
typedef ssize_t send_function(int, const void *, size_t, int);
typedef int poll_function(struct pollfd *, nfds_t, int);

static receive_function *found_recv;
static send_function *found_send;
static poll_function *found_poll;
static int (*library_poll)(int), (*library_epoll)(int);
static ssize_t (*library_recv)(int, void *, size_t), (*library_send)(int, const void *, size_t);

static void *in(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    if (!found) abort();
    return found;
}

/* The same by a version, of those that functions of this age have. */
static void *version_of(void *handle, const char *name) {
    static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17"};
    for (int i = 0; i < 3; i++) {
        void *found = dlvsym(handle, name, versions[i]);
        if (found) return found;
    }
    abort();
}

static void *(*find)(void *, const char *) = in;

static int poll_one(int fd) {
    struct pollfd look = {fd, POLLIN, 0};
    return found_poll(&look, 1, 20000);
}

static ssize_t receive(int fd, void *to, size_t length) { return found_recv(fd, to, length, MSG_DONTWAIT); }
static ssize_t give(int fd, const void *from, size_t length) { return found_send(fd, from, length, 0); }

#ifdef WRAPS
/* The program has such a function itself, which finds libc's by its handle. */
static int wrapped;

ssize_t recv(int fd, void *to, size_t length, int flags) {
    wrapped++;
    receive_function *behind = in(dlopen("libc.so.6", RTLD_NOW), "recv");
    return behind(fd, to, length, flags);
}
#endif

static void look_up(const char *way, const char *path) {
    void *handle = NULL;
    if (!strcmp(way, "linked")) handle = dlopen(path, RTLD_NOW);
    if (!strcmp(way, "deep found")) {
        void *(*found_dlopen)(const char *, int) = in(dlopen("libc.so.6", RTLD_NOW), "dlopen");
        handle = found_dlopen(path, RTLD_LAZY | RTLD_DEEPBIND);
    }
    if (!strcmp(way, "namespace found")) {
        void *(*found_dlmopen)(Lmid_t, const char *, int) = version_of(dlopen("libc.so.6", RTLD_NOW), "dlmopen");
        handle = found_dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    }
    if (!strcmp(way, "namespace again")) {
        void *first = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
        Lmid_t where;
        if (!first || dlinfo(first, RTLD_DI_LMID, &where) != 0) abort();
        handle = dlmopen(where, path, RTLD_NOW);
    }
    if (!strcmp(way, "deep")) handle = dlopen(path, RTLD_LAZY | RTLD_DEEPBIND);
    if (!strcmp(way, "deep by name")) handle = dlopen("libloaded.so", RTLD_LAZY | RTLD_DEEPBIND);
    if (!strcmp(way, "namespace")) handle = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    if (handle) {
        library_poll = in(handle, "loaded_poll");
        library_epoll = in(handle, "loaded_epoll");
        library_recv = in(handle, "loaded_recv");
        library_send = in(handle, "loaded_send");
        return;
    }
    if (!strcmp(way, "handle")) handle = dlopen("libc.so.6", RTLD_LAZY);
    if (!strcmp(way, "next")) handle = RTLD_NEXT;
    if (!strcmp(way, "default")) handle = RTLD_DEFAULT;
    if (!strcmp(way, "version")) find = version_of, handle = dlopen("libc.so.6", RTLD_LAZY);
    if (!strcmp(way, "version next")) find = version_of, handle = RTLD_NEXT;
    if (!strcmp(way, "version default")) find = version_of, handle = RTLD_DEFAULT;
    found_recv = find(handle, "recv");
    found_send = find(handle, "send");
    found_poll = find(handle, "poll");
    library_poll = library_epoll = poll_one;
    library_recv = receive;
    library_send = give;
    if (dlsym(RTLD_NEXT, "no_such_function") || !dlerror()) abort();
    if (dlvsym(RTLD_NEXT, "recv", "GLIBC_0") || !dlerror()) abort();
}

static void exchange(int fd, int first) {
    char byte = 'x';
    for (int i = 0; i < 4; i++)
        if ((i % 2 == first ? read(fd, &byte, 1) : write(fd, &byte, 1)) != 1) abort();
}

static int client(const struct sockaddr_in *address, int go) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char text[20];
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0) abort();
    exchange(fd, 0);
    for (int i = 0; i < 2; i++)
        if (read(go, text, 1) != 1 || write(fd, "hello", 5) != 5) abort();
    ssize_t n = read(fd, text, sizeof text);
    printf("the other end got %zd: %.*s\n", n, (int)n, text);
    printf("and then %zd\n", read(fd, text, sizeof text));
    return fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0), go[2];
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0 || pipe(go) != 0)
        abort();
    pid_t child = fork();
    if (child == 0) {
        close(listener);
        return client(&address, go[0]);
    }
    int fd = accept(listener, NULL, NULL);
    exchange(fd, 1);
    look_up(argv[1], argv[2]);
    char text[20];
    for (int i = 0; i < 2; i++) {
        if (write(go[1], "x", 1) != 1) abort();
        printf("waiting: %d\n", i ? library_epoll(fd) : library_poll(fd));
        ssize_t n = library_recv(fd, text, sizeof text);
        printf("received %zd: %.*s\n", n, (int)n, text);
    }
    printf("sent %zd\n", library_send(fd, "there", 5));
#ifdef WRAPS
    printf("wrapped %d\n", wrapped);
#endif
    fflush(stdout);
    close(fd);
    waitpid(child, NULL, 0);
    return 0;
}
