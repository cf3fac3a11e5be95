/* What shunt_nvme.h says of mistakes, ends and threads. Its arguments: a target's address, and one where nobody listens. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <shunt_nvme.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: not true: %s\n", __LINE__, #what); exit(1); } } while (0)

enum { BLOCK = 4096 };

static const char *addresses[1];
static char block[BLOCK];

static struct shunt_nvme_options options(const char *address)
{
    struct shunt_nvme_options all;

    memset(&all, 0, sizeof all);
    addresses[0] = address;
    all.size = sizeof all;
    all.subsystem = "nqn.2024-01.org.shunt:target";
    all.host = "nqn.2024-01.org.shunt:test-host";
    all.addresses = addresses;
    all.address_count = 1;
    all.depth = 4;
    all.give_up_ms = 300;
    return all;
}

static void refused(struct shunt_nvme_options all, int error, uint16_t status, const char *words)
{
    struct shunt_nvme_why why = { 1, "unwritten" };
    struct shunt_nvme *disks = NULL;
    int said = shunt_nvme_connect(&all, &disks, &why);

    if (said != error || disks || why.status != status || !strstr(why.text, words)) {
        fprintf(stderr, "%d (%x): %s; expected %d (%x): %s\n", said, why.status, why.text, error, status, words);
        exit(1);
    }
    CHECK(shunt_nvme_connect(&all, &disks, NULL) == error);
}

static void connecting(const char *target, const char *nobody)
{
    struct shunt_nvme_options all = options(target);

    refused(options(nobody), -ECONNREFUSED, 0, nobody);
    all.size = 3;
    refused(all, -EINVAL, 0, "sizeof");
    all = options("localhost:4420");
    refused(all, -EINVAL, 0, "localhost:4420: not an address");
    all = options(target);
    all.subsystem = "nqn.2024-01.org.shunt:another";
    refused(all, -ECONNREFUSED, 0x182, "182h");
    all = options(target);
    all.controller_key = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";
    refused(all, -EINVAL, 0, "the host needs a key");
    CHECK(shunt_nvme_connect(&all, NULL, NULL) == -EFAULT);
}

static void discovering(const char *target, const char *nobody)
{
    struct shunt_nvme_options all = options(target);
    struct shunt_nvme_record list[4];
    struct shunt_nvme_why why = { 1, "unwritten" };
    int count, found = 0;

    all.subsystem = NULL;
    count = shunt_nvme_discover(&all, list, 4, &why);
    CHECK(count >= 1 && count <= 4);
    for (int i = 0; i < count; i++)
        if (list[i].kind == SHUNT_NVME_SUBSYSTEM) {
            CHECK(!strcmp(list[i].address, target) && !strcmp(list[i].subsystem, "nqn.2024-01.org.shunt:target"));
            found++;
        }
    CHECK(found == 1);
    memset(list, 7, sizeof list);
    CHECK(shunt_nvme_discover(&all, NULL, 0, NULL) == count);
    CHECK(shunt_nvme_discover(&all, NULL, 1, NULL) == -EFAULT && shunt_nvme_discover(NULL, list, 4, NULL) == -EFAULT);
    CHECK(list[0].kind == 0x07070707);
    all = options(nobody);
    CHECK(shunt_nvme_discover(&all, list, 4, &why) == -ECONNREFUSED && strstr(why.text, nobody));
}

static int submit(struct shunt_nvme_queue *queue, uint32_t op, uint64_t start, uint32_t blocks, size_t len, uint32_t flags)
{
    struct iovec data = { block, len };
    struct shunt_nvme_command command = { op, flags, 1, blocks, start, &data, 1, start };

    return shunt_nvme_submit(queue, &command);
}

/* Of two that change a block from the same state one does. */
static void exchanges(struct shunt_nvme_queue *queue)
{
    static char before[BLOCK], one[BLOCK], other[BLOCK], many[129 * BLOCK];
    struct shunt_nvme_completion done;
    uint16_t status = 7;

    memset(one, 1, BLOCK);
    memset(other, 2, BLOCK);
    CHECK(!shunt_nvme_read(queue, 1, 12, 1, before, NULL));
    CHECK(!shunt_nvme_compare_and_write(queue, 1, 12, 1, before, one, SHUNT_NVME_FUA, &status) && !status);
    CHECK(shunt_nvme_compare_and_write(queue, 1, 12, 1, before, other, 0, &status) == -EILSEQ && status == 0x285);
    CHECK(!shunt_nvme_compare(queue, 1, 12, 1, one, NULL));
    /* Others that are under way leave no room at first. */
    for (uint64_t i = 0; i < 4; i++)
        CHECK(!submit(queue, SHUNT_NVME_READ, i, 1, BLOCK, 0));
    CHECK(!shunt_nvme_compare_and_write(queue, 1, 12, 1, one, other, 0, NULL));
    for (int i = 0; i < 4; i++)
        CHECK(shunt_nvme_poll(queue, &done, 1, -1) == 1 && !done.error);
    CHECK(!shunt_nvme_compare(queue, 1, 12, 1, other, NULL));
    CHECK(shunt_nvme_compare_and_write(queue, 1, 0, 129, many, many, 0, &status) == -EMSGSIZE && status == 0x14);
    CHECK(shunt_nvme_compare_and_write(queue, 1, 12, 0, one, one, 0, NULL) == -EINVAL);
    CHECK(shunt_nvme_compare_and_write(queue, 1, 12, 1, NULL, one, 0, NULL) == -EFAULT);
    CHECK(shunt_nvme_compare_and_write(queue, 9, 12, 1, one, one, 0, NULL) == -ENODEV);
    CHECK(shunt_nvme_compare_and_write(NULL, 1, 12, 1, one, one, 0, NULL) == -EFAULT);
}

static void commands(struct shunt_nvme *disks, struct shunt_nvme_queue *queue)
{
    struct shunt_nvme_command command = { SHUNT_NVME_READ, 0, 9, 1, 0, NULL, 0, 0 };
    struct shunt_nvme_namespace spaces[2];
    struct shunt_nvme_completion done[4];
    char name[64];
    uint16_t status = 0;

    memset(spaces, 0xee, sizeof spaces);
    CHECK(shunt_nvme_namespaces(disks, NULL, 0) == 1 && shunt_nvme_namespaces(disks, spaces, 2) == 1);
    CHECK(spaces[0].nsid == 1 && spaces[0].block_size == BLOCK && spaces[0].blocks == 256);
    CHECK(spaces[0].flags == (SHUNT_NVME_CAN_COMPARE | SHUNT_NVME_CAN_DISCARD | SHUNT_NVME_CAN_WRITE_ZEROES));
    CHECK(spaces[1].nsid == 0xeeeeeeee && spaces[0].max_transfer == 1 << 20);
    CHECK(shunt_nvme_namespace(disks, 9, spaces) == -ENODEV && !shunt_nvme_namespace(disks, 1, spaces));
    CHECK(shunt_nvme_submit(queue, &command) == -ENODEV && shunt_nvme_submit(queue, NULL) == -EFAULT);
    CHECK(submit(queue, SHUNT_NVME_READ, 0, 2, BLOCK, 0) == -EINVAL);    /* Less data than blocks. */
    CHECK(submit(queue, SHUNT_NVME_READ, 0, 0, BLOCK, 0) == -EINVAL);
    CHECK(submit(queue, SHUNT_NVME_READ, 0, 65537, BLOCK, 0) == -EINVAL);
    CHECK(submit(queue, SHUNT_NVME_READ, 0, 257, BLOCK, 0) == -EMSGSIZE);
    CHECK(submit(queue, 77, 0, 1, BLOCK, 0) == -EINVAL);
    CHECK(submit(queue, SHUNT_NVME_READ, 0, 1, BLOCK, SHUNT_NVME_DEALLOCATE) == -EINVAL);
    command.nsid = 1;
    command.data_count = 1;
    CHECK(shunt_nvme_submit(queue, &command) == -EFAULT);
    command.data_count = 2000;
    CHECK(shunt_nvme_submit(queue, &command) == -EINVAL);
    CHECK(shunt_nvme_outstanding(queue) == 0 && shunt_nvme_poll(queue, done, 4, -1) == 0);
    CHECK(shunt_nvme_poll(queue, NULL, 4, 0) == -EFAULT && shunt_nvme_poll(queue, done, 0, 0) == -EINVAL);
    for (uint64_t i = 0; i < 4; i++)
        CHECK(!submit(queue, SHUNT_NVME_WRITE, i, 1, BLOCK, SHUNT_NVME_FUA));
    CHECK(submit(queue, SHUNT_NVME_WRITE, 4, 1, BLOCK, 0) == -EAGAIN);
    /* A call that waits finds room, and leaves what others have submitted to shunt_nvme_poll. */
    CHECK(!shunt_nvme_read(queue, 1, 0, 1, block, &status) && shunt_nvme_outstanding(queue) == 4);
    for (int left = 4; left > 0; left--)
        CHECK(shunt_nvme_poll(queue, done, 1, -1) == 1 && !done[0].error && done[0].token < 4);
    CHECK(shunt_nvme_outstanding(queue) == 0);
    CHECK(!submit(queue, SHUNT_NVME_VERIFY, 0, 1, 0, 0) && !submit(queue, SHUNT_NVME_FLUSH, 1, 0, 0, 0));
    while (shunt_nvme_outstanding(queue) > 0)
        CHECK(shunt_nvme_poll(queue, done, 4, -1) > 0 && !done[0].error);
    CHECK(!submit(queue, SHUNT_NVME_READ, 256, 1, BLOCK, 0) && shunt_nvme_poll(queue, done, 4, -1) == 1);
    CHECK(done[0].error == -ERANGE && done[0].status == 0x080 && done[0].token == 256);
    CHECK(shunt_nvme_read(queue, 1, 256, 1, block, &status) == -ERANGE && status == 0x080);
    CHECK(shunt_nvme_read(queue, 1, 0, 1, NULL, &status) == -EFAULT && shunt_nvme_read(queue, 1, 0, 0, NULL, NULL) == 0);
    CHECK(shunt_nvme_read(queue, 1, UINT64_MAX, 2, block, NULL) == -EINVAL);
    CHECK(shunt_nvme_write(queue, 1, 0, 1, block, 64, NULL) == -EINVAL);
    CHECK(!shunt_nvme_status_name(0x285, name, sizeof name) && !strcmp(name, "Compare Failure"));
    CHECK(!shunt_nvme_status_name(0x285, name, 5) && !strcmp(name, "Comp"));
    CHECK(shunt_nvme_status_name(0, NULL, 5) == -EFAULT);
    CHECK(shunt_nvme_outstanding(NULL) == -EFAULT && shunt_nvme_queue_fd(NULL) == -EFAULT);
}

static void *waits(void *queue)
{
    struct shunt_nvme_completion done;
    /* The target is stopped, for as long as the other thread likes. */
    int count;

    do
        count = shunt_nvme_poll(queue, &done, 1, -1);
    while (count == -EBUSY); /* The other thread has looked. */
    CHECK(count == 1 && done.token == 5);
    return NULL;
}

/* One thread at a time; and a thread that is to be cancelled goes on to the end of its call. */
static void threads(struct shunt_nvme_queue *queue)
{
    struct pollfd ready = { shunt_nvme_queue_fd(queue), POLLIN, 0 };
    struct shunt_nvme_completion done;
    pthread_t thread;
    int said;

    CHECK(!submit(queue, SHUNT_NVME_READ, 4, 1, BLOCK, 0) && shunt_nvme_poll(queue, &done, 1, 0) >= 0);
    if (shunt_nvme_outstanding(queue) > 0)
        CHECK(poll(&ready, 1, 60000) == 1);
    while (shunt_nvme_outstanding(queue) > 0)
        CHECK(shunt_nvme_poll(queue, &done, 1, -1) == 1 && done.token == 4);
    printf("stop\n");
    fflush(stdout);
    CHECK(getchar() == '1');
    CHECK(!submit(queue, SHUNT_NVME_READ, 5, 1, BLOCK, 0));
    CHECK(!pthread_create(&thread, NULL, waits, queue));
    while ((said = shunt_nvme_outstanding(queue)) != -EBUSY) {
        CHECK(said == 1);
        usleep(1000);
    }
    CHECK(submit(queue, SHUNT_NVME_READ, 6, 1, BLOCK, 0) == -EBUSY);
    CHECK(!pthread_cancel(thread));
    printf("go on\n");
    fflush(stdout);
    CHECK(!pthread_join(thread, NULL));
    CHECK(shunt_nvme_outstanding(queue) == 0);
}

/* What this process has of a kind: its threads, or its descriptors. */
static int entries(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;

    CHECK(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

int main(int count, char **words)
{
    int threads_before = entries("/proc/self/task"), descriptors = entries("/proc/self/fd");
    struct shunt_nvme_options all;
    struct shunt_nvme *disks;
    struct shunt_nvme_queue *queue, *other;
    struct shunt_nvme_completion done;
    uint64_t changes;

    CHECK(count == 3);
    connecting(words[1], words[2]);
    discovering(words[1], words[2]);
    all = options(words[1]);
    CHECK(!shunt_nvme_connect(&all, &disks, NULL) && !shunt_nvme_queue_create(disks, &queue, NULL));
    changes = shunt_nvme_changes(disks);
    commands(disks, queue);
    exchanges(queue);
    threads(queue);
    CHECK(shunt_nvme_changes(disks) == changes);
    CHECK(shunt_nvme_disconnect(disks) == -EBUSY);
    /* What is under way goes with the queue, and so does what has been submitted and never sent. */
    CHECK(!shunt_nvme_queue_create(disks, &other, NULL));
    CHECK(!submit(other, SHUNT_NVME_READ, 0, 1, BLOCK, 0) && shunt_nvme_poll(other, &done, 1, 0) >= 0);
    CHECK(!submit(other, SHUNT_NVME_READ, 0, 1, BLOCK, 0));
    CHECK(!shunt_nvme_queue_destroy(other) && shunt_nvme_disconnect(disks) == -EBUSY);
    /* Without a target there is an end, too. */
    printf("kill\n");
    fflush(stdout);
    CHECK(getchar() == '2');
    CHECK(shunt_nvme_read(queue, 1, 0, 1, block, NULL) == -EHOSTUNREACH);
    CHECK(!submit(queue, SHUNT_NVME_READ, 8, 1, BLOCK, 0) && shunt_nvme_poll(queue, &done, 1, -1) == 1);
    CHECK(done.error == -EHOSTUNREACH && done.status == 0 && done.token == 8);
    CHECK(!shunt_nvme_queue_destroy(queue) && !shunt_nvme_disconnect(disks) && !shunt_nvme_disconnect(NULL));
    /* Nothing is left, also of attempts that have failed. */
    CHECK(entries("/proc/self/task") == threads_before && entries("/proc/self/fd") == descriptors);
    printf("all as it should be\n");
    return 0;
}
