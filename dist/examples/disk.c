/* Writes to a disk of an NVMe/TCP target and reads back: calls that wait, and commands of two threads at once. */
#include <pthread.h>
#include <shunt.h>
#include <shunt_nvme.h>
#include <stdio.h>

enum { THREADS = 2, DEPTH = 16, ROUNDS = 40, BYTES = 64 << 10 };

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: not true: %s\n", __LINE__, #what); exit(1); } } while (0)

static struct shunt_nvme *disks;
static struct shunt_nvme_namespace space;

static void fill(unsigned char *at, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        at[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 11);
}

/* Each thread has a queue and blocks of its own. */
static void *worker(void *argument)
{
    unsigned number = (unsigned)(size_t)argument, blocks = BYTES / space.block_size;
    unsigned char *memory = shunt_alloc((size_t)DEPTH * BYTES), *expected = malloc(BYTES);
    struct shunt_nvme_completion done[DEPTH];
    struct shunt_nvme_queue *queue;
    int reads, count;

    CHECK(memory && expected && !shunt_nvme_queue_create(disks, &queue, NULL));
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (reads = 0; reads < 2; reads++) {
            for (unsigned i = 0; i < DEPTH; i++) {
                /* In two pieces, as the parts of a request often are. */
                unsigned char *at = memory + (size_t)i * BYTES;
                struct iovec data[2] = { { at, 4096 }, { at + 4096, BYTES - 4096 } };
                struct shunt_nvme_command command = {
                    .op = reads ? SHUNT_NVME_READ : SHUNT_NVME_WRITE, .nsid = space.nsid, .blocks = blocks,
                    .start = (uint64_t)(number * DEPTH + i) * blocks, .data = data, .data_count = 2, .token = i,
                };

                if (reads)
                    memset(at, 0, BYTES);
                else
                    fill(at, BYTES, round * DEPTH + i);
                CHECK(!shunt_nvme_submit(queue, &command));
            }
            CHECK(shunt_nvme_outstanding(queue) == DEPTH);
            while (shunt_nvme_outstanding(queue) > 0) {
                count = shunt_nvme_poll(queue, done, DEPTH, -1);
                CHECK(count > 0);
                for (int i = 0; i < count; i++) {
                    CHECK(!done[i].error && !done[i].status && done[i].token < DEPTH);
                    fill(expected, BYTES, (unsigned)(round * DEPTH + done[i].token));
                    CHECK(!memcmp(memory + done[i].token * BYTES, expected, BYTES));
                }
            }
        }
    }
    CHECK(!shunt_nvme_queue_destroy(queue));
    CHECK(!shunt_free(memory));
    free(expected);
    return NULL;
}

/* More than a command takes. */
static void one_after_the_other(void)
{
    size_t len = (size_t)space.max_transfer * 2 + space.block_size;
    uint64_t blocks = len / space.block_size;
    unsigned char *memory = shunt_alloc(len), *read = malloc(len);
    struct shunt_nvme_queue *queue;
    uint16_t status;

    CHECK(memory && read && !shunt_nvme_queue_create(disks, &queue, NULL));
    fill(memory, len, 7);
    CHECK(!shunt_nvme_write(queue, space.nsid, 3, blocks, memory, SHUNT_NVME_FUA, &status));
    CHECK(!shunt_nvme_read(queue, space.nsid, 3, blocks, read, &status));
    CHECK(!memcmp(memory, read, len));
    CHECK(!shunt_nvme_compare(queue, space.nsid, 3, blocks, memory, &status) && !status);
    CHECK(!shunt_nvme_flush(queue, space.nsid, &status));
    CHECK(!shunt_nvme_write_zeroes(queue, space.nsid, 3, 1, SHUNT_NVME_DEALLOCATE, &status));
    CHECK(shunt_nvme_compare(queue, space.nsid, 3, blocks, memory, &status) == -EILSEQ && status == 0x285);
    CHECK(!shunt_nvme_discard(queue, space.nsid, 3, blocks, &status));
    CHECK(!shunt_nvme_queue_destroy(queue));
    CHECK(!shunt_free(memory));
    free(read);
}

int main(int count, char **words)
{
    struct shunt_nvme_options options = { .size = sizeof options, .subsystem = "nqn.2024-01.org.shunt:target" };
    struct shunt_nvme_why why;
    pthread_t threads[THREADS];
    int error;

    if (count < 2) {
        fprintf(stderr, "usage: %s ADDRESS:PORT...\n", words[0]);
        return 2;
    }
    options.addresses = (const char *const *)words + 1;
    options.address_count = (size_t)count - 1;
    error = shunt_nvme_connect(&options, &disks, &why);
    if (error) {
        fprintf(stderr, "%s: %s (%s)\n", words[1], why.text, strerror(-error));
        return 1;
    }
    CHECK(shunt_nvme_namespaces(disks, &space, 1) == 1);
    one_after_the_other();
    for (size_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, worker, (void *)i));
    for (size_t i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    CHECK(!shunt_nvme_disconnect(disks));
    printf("all there\n");
    return 0;
}
