/* Two threads with a connection between them, who take turns at a variable: whoever has received may use it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURNS = 500, LENGTH = 4096 };

#ifdef OWN_OPTIONS
const char *__asan_default_options(void) { return "exitcode=7"; }
#endif

static struct sockaddr_in address = {.sin_family = AF_INET};
static long shared;

static int receive(int fd, char *to) {
    size_t done = 0;
    while (done < LENGTH) {
        ssize_t n = recv(fd, to + done, LENGTH - done, 0);
        if (n <= 0) return 0;
        done += (size_t)n;
    }
    return 1;
}

static void take_turns(int fd, int first) {
    char *bytes = malloc(LENGTH);
    for (int i = 0; i < TURNS; i++) {
        if (!first && !receive(fd, bytes)) abort();
        shared += first ? 1 : 1000;
        memset(bytes, i, LENGTH);
        if (send(fd, bytes, LENGTH, 0) != LENGTH) abort();
        if (first && !receive(fd, bytes)) abort();
    }
    free(bytes);
    close(fd);
}

static void *client(void *unused) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) abort();
    take_turns(fd, 1);
    return unused;
}

int main(int argc, char **argv) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        abort();
    pthread_t thread;
    pthread_create(&thread, NULL, client, NULL);
    int fd = accept(listener, NULL, NULL);
    take_turns(fd, 0);
    pthread_join(thread, NULL);
    printf("shared %ld\n", shared);
    fflush(stdout);
    if (argc > 1) {
        /* Something for a sanitizer to find: a buffer that was freed is sent. */
        int pair[2] = {socket(AF_INET, SOCK_STREAM, 0), -1};
        if (connect(pair[0], (struct sockaddr *)&address, sizeof address) != 0) abort();
        pair[1] = accept(listener, NULL, NULL);
        size_t size = strtoul(argv[1], NULL, 10);
        char *volatile bytes = calloc(1, size), *volatile answer = malloc(size);
        for (int i = 0; i < 50; i++) {
            if (send(pair[0], bytes, size, 0) != (ssize_t)size) abort();
            if (recv(pair[1], answer, size, MSG_WAITALL) != (ssize_t)size) abort();
            if (send(pair[1], bytes, 1, 0) != 1 || recv(pair[0], answer, 1, 0) != 1) abort();
        }
        free(bytes);
        printf("sent %zd\n", send(pair[0], bytes, size, 0));
    }
    return 0;
}
