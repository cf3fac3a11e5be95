/* What private memory costs on its way to another process: three ways, one direction, two processes on two cores that
 * wait for each other by spinning. Timed is what is done with the bytes, not the waiting.
 *
 *   cc -O2 -o pins pins.c && ./pins ring|readv|pipes BYTES SECONDS [PIPES]
 *
 * ring: copied to a ring of 512 KiB, and out of it. readv: process_vm_readv(2). pipes: vmsplice(2) into so many pipes in
 * turn, by 128 KiB, and read(2). From 16 buffers in turn, to 64 KiB. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BUFFERS = 16, RING = 512 << 10, PIECE = 128 << 10, PLACE = 64 << 10, MOST = 4 };

struct shared {
    _Alignas(64) _Atomic uint64_t sent;
    _Alignas(64) _Atomic uint64_t taken;
    _Alignas(64) _Atomic int over;
    _Alignas(64) uint64_t sending; /* nanoseconds */
    _Alignas(64) uint64_t taking;
};

static void *shared_memory(size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memset(at, 0, len);
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void on_core(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "pins ring|readv|pipes BYTES SECONDS [PIPES]\n");
        return 2;
    }
    const char way = argv[1][0] == 'p' ? 'p' : argv[1][2] == 'n' ? 'r' : 'v';
    const size_t size = strtoul(argv[2], NULL, 0), piece = least(size, PIECE);
    const uint64_t time = (uint64_t)(atof(argv[3]) * 1e9);
    const size_t count = argc > 4 ? least(strtoul(argv[4], NULL, 0), MOST) : 2;
    struct shared *sh = shared_memory(sizeof *sh);
    char *ring = shared_memory(RING), *buffers = aligned_alloc(4096, BUFFERS * size), *place = malloc(PLACE);
    memset(place, 0, PLACE);
    int pipes[MOST][2];
    for (size_t i = 0; i < count; i++)
        if (pipe2(pipes[i], O_NONBLOCK) || fcntl(pipes[i][1], F_SETPIPE_SZ, RING) < 0) {
            perror("pipe");
            return 1;
        }
    const pid_t sender = getpid();
    const pid_t receiver = fork();
    if (receiver == 0) {
        on_core(1);
        for (uint64_t at = 0;;) {
            uint64_t sent = atomic_load(&sh->sent);
            if (sent == at) {
                if (atomic_load(&sh->over) && atomic_load(&sh->sent) == at)
                    _exit(0);
                continue;
            }
            size_t n = least(least(sent - at, PLACE), piece - at % piece);
            const uint64_t begun = now();
            ssize_t done = (ssize_t)n;
            if (way == 'r') {
                memcpy(place, ring + at % RING, n);
            } else if (way == 'v') {
                struct iovec to = { place, n }, from = { buffers + at % (BUFFERS * size), n };
                done = process_vm_readv(sender, &to, 1, &from, 1, 0);
            } else {
                done = read(pipes[at / piece % count][0], place, n);
            }
            sh->taking += now() - begun;
            if (done != (ssize_t)n)
                _exit(1);
            at += n;
            atomic_store(&sh->taken, at);
        }
    }
    on_core(0);
    memset(buffers, 'x', BUFFERS * size);
    uint64_t at = 0;
    const uint64_t start = now();
    for (size_t turn = 0; now() - start < time; turn++) {
        char *from = buffers + turn % BUFFERS * size;
        for (size_t done = 0; done < size; done += piece) {
            while (at + piece > atomic_load(&sh->taken) + RING)
                ;
            const uint64_t begun = now();
            if (way == 'r') {
                memcpy(ring + at % RING, from + done, piece);
            } else if (way == 'p') {
                struct iovec bytes = { from + done, piece };
                if (vmsplice(pipes[at / piece % count][1], &bytes, 1, 0) != (ssize_t)piece) {
                    perror("vmsplice");
                    kill(receiver, SIGKILL);
                    return 1;
                }
            }
            sh->sending += now() - begun;
            at += piece;
            atomic_store(&sh->sent, at);
        }
    }
    const uint64_t took = now() - start;
    atomic_store(&sh->over, 1);
    int status;
    waitpid(receiver, &status, 0);
    printf("%s %zu: %.1f GB/s; seconds per GB: sender %.3f, receiver %.3f; %.1f GB per second of both\n", argv[1], size,
           (double)at / (double)took, (double)sh->sending / (double)at, (double)sh->taking / (double)at,
           (double)at / (double)(sh->sending + sh->taking));
    return status != 0;
}
