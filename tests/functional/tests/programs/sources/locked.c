/* An allocator that has all its locks while the handlers of a fork run, as jemalloc: whoever allocates then would wait for ever. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

static __thread int is_locked;

static void allocates(void) {
    static const char told[] = "memory is asked for in a fork\n";
    if (!is_locked) return;
    if (write(2, told, sizeof told - 1) < 0) _exit(4);
    _exit(3);
}

void *malloc(size_t size) { allocates(); return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { allocates(); return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { allocates(); return __libc_realloc(old, size); }

static void lock(void) { is_locked = 1; }
static void unlock(void) { is_locked = 0; }

static int ends[2];

/* The child answers on a connection that it has inherited. */
static void *forks(void *unused) {
    char byte = 0;
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(send(ends[0], "x", 1, 0) != 1);
    if (child < 0 || recv(ends[1], &byte, 1, 0) != 1 || byte != 'x') abort();
    if (waitpid(child, &status, 0) != child || status != 0) abort();
    puts("forked");
    return unused;
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0) abort();
    if (getsockname(listener, (struct sockaddr *)&address, &length) != 0) abort();
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (struct sockaddr *)&address, length) != 0) abort();
    ends[1] = accept(listener, NULL, NULL);
    for (int i = 0; i < 8; i++) {
        char byte;
        if (send(ends[i % 2], "y", 1, 0) != 1 || recv(ends[(i + 1) % 2], &byte, 1, 0) != 1) abort();
    }
    if (pthread_atfork(lock, unlock, unlock) != 0) abort();
    /* Each thread's first fork. */
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, forks, NULL) != 0) abort();
        if (pthread_join(thread, NULL) != 0) abort();
    }
    forks(NULL);
    return 0;
}
