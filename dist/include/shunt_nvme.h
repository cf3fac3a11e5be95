/*
 * An NVMe/TCP host in this process: reads and writes namespaces of a subsystem, such as those of `shunt nvme target`,
 * without the kernel's block layer. Link with -lshunt_nvme. See shunt_nvme(3).
 *
 * Functions return 0 or a number that is not negative, or a negative error number; those that go wrong on the
 * controller's side tell its status as well. No function prints, changes signal handlers, or is a cancellation point.
 */
#ifndef SHUNT_NVME_H
#define SHUNT_NVME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A subsystem, by all its paths. Any thread may use it at any time. */
struct shunt_nvme;

/* A queue of commands: for one thread at a time. Another one gets -EBUSY meanwhile. */
struct shunt_nvme_queue;

/* Times. */
#define SHUNT_NVME_NEVER 0xffffffffu

/* Flags of the options. */
#define SHUNT_NVME_HEADER_DIGEST 1u /* Ask for digests of headers. */
#define SHUNT_NVME_DATA_DIGEST 2u   /* Ask for digests of data. */
#define SHUNT_NVME_NO_GRANT 4u      /* Copy what is sent, also where the target could read it in place. */

/* How to reach a subsystem. What is zero is the default. */
struct shunt_nvme_options {
    size_t size;                  /* sizeof(struct shunt_nvme_options). */
    const char *subsystem;        /* Its name (NQN). */
    const char *const *addresses; /* "127.0.0.1:4420", "[::1]:4420": paths to the one subsystem. */
    size_t address_count;
    const char *host;             /* The host's name; default: that of /etc/nvme/hostnqn, or a random one. */
    const char *key;              /* The host's key, "DHHC-1:...". */
    const char *controller_key;   /* The controller's: it has to prove who it is, too. */
    uint32_t flags;
    uint32_t depth;               /* Commands at once on a queue; default 128, at most 1024. */
    uint32_t keep_alive_ms;       /* Default 5000; SHUNT_NVME_NEVER: neither end is watched. */
    uint32_t connect_timeout_ms;  /* Default 5000. */
    uint32_t command_timeout_ms;  /* Before a command is aborted. Default 30000. */
    uint32_t reconnect_delay_ms;  /* The first one; later ones are up to 16 times as long. Default 100. */
    uint32_t give_up_ms;          /* How long commands wait for a path. Default 600000; SHUNT_NVME_NEVER: for ever. */
    uint32_t reserved;
};

/* What is wrong: the controller's status, if there was one, and words that end with a zero. */
struct shunt_nvme_why {
    uint16_t status;
    char text[254];
};

/* Flags of a namespace. */
#define SHUNT_NVME_READ_ONLY 1u
#define SHUNT_NVME_WRITE_CACHE 2u /* What was written lasts after a flush. */
#define SHUNT_NVME_CAN_COMPARE 4u
#define SHUNT_NVME_CAN_DISCARD 8u
#define SHUNT_NVME_CAN_WRITE_ZEROES 16u

struct shunt_nvme_namespace {
    uint32_t nsid;
    uint32_t block_size;
    uint64_t blocks;
    uint32_t max_transfer; /* Most bytes of a command. */
    uint32_t flags;
    uint8_t nguid[16];     /* Zero where there is none. */
    uint8_t uuid[16];
};

/* What a record of a discovery service is about. */
#define SHUNT_NVME_REFERRAL 1u  /* Another discovery service. */
#define SHUNT_NVME_SUBSYSTEM 2u /* A subsystem, by one of its paths. */
#define SHUNT_NVME_DISCOVERY 3u /* The discovery service itself. */

struct shunt_nvme_record {
    uint32_t kind;
    char address[64];    /* "127.0.0.1:4420", "[::1]:4420": fit for the options. */
    char subsystem[228]; /* The name (NQN). */
};

/* What a command does. */
#define SHUNT_NVME_READ 1u
#define SHUNT_NVME_WRITE 2u
#define SHUNT_NVME_FLUSH 3u
#define SHUNT_NVME_COMPARE 4u
#define SHUNT_NVME_WRITE_ZEROES 5u
#define SHUNT_NVME_DISCARD 6u
#define SHUNT_NVME_VERIFY 7u

/* Flags of a command. */
#define SHUNT_NVME_FUA 1u        /* Reads, writes, zeroes: it has completed when it is durable. */
#define SHUNT_NVME_DEALLOCATE 2u /* Zeroes: the space may be given up. */

struct shunt_nvme_command {
    uint32_t op;
    uint32_t flags;
    uint32_t nsid;
    uint32_t blocks;          /* 1 to 65536, and no more than max_transfer where there is data. */
    uint64_t start;           /* The first block. */
    const struct iovec *data; /* The list is read by the call; the memory is the queue's until the completion. */
    size_t data_count;        /* At most 1024. */
    uint64_t token;           /* Comes back with the completion. */
};

struct shunt_nvme_completion {
    uint64_t token;
    uint64_t result;   /* Of the command's completion. */
    int error;         /* 0, or a negative error number. */
    uint16_t status;   /* Status code, and its type above it (0x285: Compare Failure); 0 if no controller gave one. */
    uint16_t reserved;
};

/*
 * Connects to SUBSYSTEM; returns when one path is up. A thread per path, which takes no signals, keeps it up. WHY may
 * be NULL, here and below.
 */
int shunt_nvme_connect(const struct shunt_nvme_options *options, struct shunt_nvme **subsystem, struct shunt_nvme_why *why);

/*
 * Asks the discovery service at the first of the addresses that answers for what this host may connect to. Fills a list
 * with up to MOST records; returns how many there are. The options' subsystem is not looked at.
 */
int shunt_nvme_discover(const struct shunt_nvme_options *options, struct shunt_nvme_record *list, size_t most,
                        struct shunt_nvme_why *why);

/* Shuts its controllers down, and frees it. -EBUSY, and nothing is done, while there are queues. */
int shunt_nvme_disconnect(struct shunt_nvme *subsystem);

/* Another number than before when namespaces or paths may have changed. */
uint64_t shunt_nvme_changes(const struct shunt_nvme *subsystem);

/* Fills a list with up to MOST namespaces; returns how many there are. */
int shunt_nvme_namespaces(const struct shunt_nvme *subsystem, struct shunt_nvme_namespace *list, size_t most);

/* One of them; -ENODEV if there is none of that number. */
int shunt_nvme_namespace(const struct shunt_nvme *subsystem, uint32_t nsid, struct shunt_nvme_namespace *space);

/* Makes a queue, which has connections of its own. */
int shunt_nvme_queue_create(const struct shunt_nvme *subsystem, struct shunt_nvme_queue **queue, struct shunt_nvme_why *why);

/* Ends its connections and frees it. Memory of its commands is the caller's again. */
int shunt_nvme_queue_destroy(struct shunt_nvme_queue *queue);

/* Is readable (poll(2), epoll(7)) when shunt_nvme_poll has something to do. Not the caller's to close. */
int shunt_nvme_queue_fd(const struct shunt_nvme_queue *queue);

/* Commands that were submitted and that shunt_nvme_poll has not given back. */
int shunt_nvme_outstanding(const struct shunt_nvme_queue *queue);

/* Takes a command, which the next shunt_nvme_poll sends. -EAGAIN when as many are under way as the queue has places. */
int shunt_nvme_submit(struct shunt_nvme_queue *queue, const struct shunt_nvme_command *command);

/*
 * Sends what was submitted and gives up to MOST commands that are over; how many. Waits TIMEOUT_MS for the first one:
 * 0 not at all, negative as long as it takes. 0 also if none is outstanding.
 */
int shunt_nvme_poll(struct shunt_nvme_queue *queue, struct shunt_nvme_completion *done, size_t most, int timeout_ms);

/*
 * Calls that wait. They take any number of blocks, in as many commands as that needs; where one has failed, those
 * before and beside it may have been executed. STATUS may be NULL. Commands that were submitted go on meanwhile.
 */
int shunt_nvme_read(struct shunt_nvme_queue *queue, uint32_t nsid, uint64_t start, uint64_t blocks, void *data, uint16_t *status);
int shunt_nvme_write(struct shunt_nvme_queue *queue, uint32_t nsid, uint64_t start, uint64_t blocks, const void *data,
                     uint32_t flags, uint16_t *status);
int shunt_nvme_compare(struct shunt_nvme_queue *queue, uint32_t nsid, uint64_t start, uint64_t blocks, const void *data,
                       uint16_t *status);
int shunt_nvme_write_zeroes(struct shunt_nvme_queue *queue, uint32_t nsid, uint64_t start, uint64_t blocks, uint32_t flags,
                            uint16_t *status);
int shunt_nvme_discard(struct shunt_nvme_queue *queue, uint32_t nsid, uint64_t start, uint64_t blocks, uint16_t *status);
int shunt_nvme_flush(struct shunt_nvme_queue *queue, uint32_t nsid, uint16_t *status);

/*
 * Writes blocks if they are as EXPECTED, and nothing else is done to them in between (a fused Compare and Write).
 * -EILSEQ: they differ, and are as they were. -EMSGSIZE: more blocks than the controller does so at once; it may be as few
 * as one. -ECONNRESET: the connection was lost before the answer; they may have been written. The queue needs a depth of 2.
 */
int shunt_nvme_compare_and_write(struct shunt_nvme_queue *queue, uint32_t nsid, uint64_t start, uint32_t blocks,
                                 const void *expected, const void *data, uint32_t flags, uint16_t *status);

/* The specification's name of a status, cut off at ROOM. */
int shunt_nvme_status_name(uint16_t status, char *name, size_t room);

#ifdef __cplusplus
}
#endif

#endif
