/* A libibverbs for tests: one device, whose queue pairs reach each other in the process, at once and in order.
 *
 * Where SHUNT_TEST_WIRE names a directory they also reach those of other processes that have it: a datagram carries a request, and
 * completes at its sender when it is sent, by a thread. A peer that is gone, or has no such queue pair, is noticed at the next
 * request only. While there is a file "cut" in the directory no request arrives, and while there is one "slow" each takes 20 ms. A
 * file "fail" is taken away by the next request, which does not arrive. The
 * file that a process is reached by stands for the device: where it has another name the device is being removed. While there is one
 * of its name with ".down" behind it the first port is down, which is told as an event when anything short arrives. There is a second
 * port then, which is never down.
 *
 * It is compiled with the header of libibverbs-dev, so what Rust passes is read as C reads it. It checks what the kernel checks
 * (masks of a queue pair's steps, keys, bounds), and lets everything else be as simple as it can. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LIMIT (64 << 20)
#define DEEP 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Something was posted for the wire; something was sent there. */
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;

struct mr { struct ibv_mr mr; int access; struct mr *next; };
struct cq { struct ibv_cq cq; struct ibv_wc ready[DEEP]; unsigned head, tail; int armed; };
struct channel { struct ibv_comp_channel channel; int in; };
struct send { struct ibv_send_wr wr; struct ibv_sge sge[8]; };
struct recv { struct ibv_recv_wr wr; struct ibv_sge sge; };
struct qp {
    struct ibv_qp qp;
    struct ibv_qp_cap cap;
    struct ibv_qp_attr attr;
    struct send sends[DEEP];
    struct recv recvs[DEEP];
    unsigned send_head, send_tail, recv_head, recv_tail;
    /* Its next request is on its way, without the lock. */
    int is_sending;
    struct qp *next;
};

/* One that works, one that the user may not open, one without a cable, and one that has something to tell. */
static struct ibv_device devices[] = { { .name = "stub0" }, { .name = "closed0" }, { .name = "down0" }, { .name = "told0" } };
static struct ibv_device *listed[] = { &devices[0], &devices[1], &devices[2], &devices[3], NULL };
static struct mr *mrs;
static struct qp *qps;
static uint32_t last = 100;
/* Where other processes are reached, and the number of this one there. */
static const char *wire;
static int wire_in = -1;
static uint32_t self;

struct packet {
    uint32_t from, to, psn, opcode, rkey, imm, len;
    uint64_t addr;
    char bytes[1 << 17];
};
static const union ibv_gid gids[2] = {
    { .raw = { 0xfe, 0x80, [15] = 7 } },
    { .raw = { [10] = 0xff, 0xff, 10, 0, 0, 7 } },
};

static struct mr *find_mr(uint32_t key, uint64_t addr, uint64_t len)
{
    for (struct mr *mr = mrs; mr; mr = mr->next)
        if (mr->mr.lkey == key || mr->mr.rkey == key) {
            uint64_t at = (uintptr_t)mr->mr.addr;
            return addr >= at && addr + len <= at + mr->mr.length ? mr : NULL;
        }
    return NULL;
}

static struct qp *find_qp(uint32_t num)
{
    for (struct qp *qp = qps; qp; qp = qp->next)
        if (qp->qp.qp_num == num)
            return qp;
    return NULL;
}

static void put(struct ibv_cq *to, struct ibv_wc wc)
{
    struct cq *cq = (struct cq *)to;
    cq->ready[cq->tail++ % DEEP] = wc;
    if (cq->armed) {
        struct channel *channel = (struct channel *)to->channel;
        cq->armed = 0;
        if (write(channel->in, &to, sizeof to) != sizeof to)
            abort();
    }
}

static void sent(struct qp *qp, struct send *send, enum ibv_wc_status status)
{
    if (status == IBV_WC_SUCCESS && !(send->wr.send_flags & IBV_SEND_SIGNALED))
        return;
    put(qp->qp.send_cq, (struct ibv_wc){
        .wr_id = send->wr.wr_id, .status = status, .qp_num = qp->qp.qp_num,
        .opcode = send->wr.opcode == IBV_WR_SEND ? IBV_WC_SEND : IBV_WC_RDMA_WRITE,
    });
}

static void fail(struct qp *qp, enum ibv_wc_status status)
{
    qp->attr.qp_state = IBV_QPS_ERR;
    while (qp->send_head != qp->send_tail) {
        sent(qp, &qp->sends[qp->send_head++ % DEEP], status);
        status = IBV_WC_WR_FLUSH_ERR;
    }
    while (qp->recv_head != qp->recv_tail)
        put(qp->qp.recv_cq, (struct ibv_wc){
            .wr_id = qp->recvs[qp->recv_head++ % DEEP].wr.wr_id, .status = IBV_WC_WR_FLUSH_ERR,
            .qp_num = qp->qp.qp_num,
        });
}

static int hears(struct qp *to, const struct packet *it)
{
    int is_ready = to->attr.qp_state == IBV_QPS_RTR || to->attr.qp_state == IBV_QPS_RTS;
    return is_ready && to->attr.dest_qp_num == it->from && to->attr.rq_psn == it->psn;
}

/* What the device of a request's peer does with it, and what the sender is told. */
static enum ibv_wc_status arrive(const struct packet *it, const char *bytes)
{
    struct qp *to = find_qp(it->to);
    if (!to || !hears(to, it))
        return IBV_WC_RETRY_EXC_ERR;
    if (it->opcode != IBV_WR_RDMA_WRITE && to->recv_head == to->recv_tail)
        return IBV_WC_RNR_RETRY_EXC_ERR;
    if (it->opcode != IBV_WR_SEND) {
        struct mr *mr = find_mr(it->rkey, it->addr, it->len);
        if (!mr || !(mr->access & IBV_ACCESS_REMOTE_WRITE) || !(to->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) {
            fail(to, IBV_WC_WR_FLUSH_ERR);
            return IBV_WC_REM_ACCESS_ERR;
        }
        memcpy((void *)(uintptr_t)it->addr, bytes, it->len);
        if (it->opcode == IBV_WR_RDMA_WRITE)
            return IBV_WC_SUCCESS;
    }
    struct recv *recv = &to->recvs[to->recv_head++ % DEEP];
    struct ibv_wc wc = { .wr_id = recv->wr.wr_id, .qp_num = to->qp.qp_num, .byte_len = it->len, .opcode = IBV_WC_RECV };
    if (it->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        wc.wc_flags = IBV_WC_WITH_IMM;
        wc.imm_data = it->imm;
    } else if (it->len > recv->sge.length || !find_mr(recv->sge.lkey, recv->sge.addr, it->len)) {
        wc.status = IBV_WC_LOC_LEN_ERR;
        put(to->qp.recv_cq, wc);
        fail(to, IBV_WC_WR_FLUSH_ERR);
        return IBV_WC_REM_INV_REQ_ERR;
    } else {
        memcpy((void *)(uintptr_t)recv->sge.addr, bytes, it->len);
    }
    put(to->qp.recv_cq, wc);
    return IBV_WC_SUCCESS;
}

static struct ibv_context *contexts[16];

static int is_down(void)
{
    char path[256];
    if (!wire)
        return 0;
    snprintf(path, sizeof path, "%s/%u.down", wire, self);
    return !access(path, F_OK);
}

static void tell(struct ibv_context *context, enum ibv_event_type type)
{
    struct ibv_async_event event = { .element.port_num = 1, .event_type = type };
    if (write(context->cmd_fd, &event, sizeof event) != sizeof event)
        abort();
}

static void tell_all(enum ibv_event_type type)
{
    for (unsigned i = 0; i < sizeof contexts / sizeof *contexts; i++)
        if (contexts[i])
            tell(contexts[i], type);
}

static struct sockaddr_un place(uint32_t process)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    snprintf(at.sun_path, sizeof at.sun_path, "%s/%u", wire, process);
    return at;
}

/* Sends a request to the process of its peer. Without the lock: it waits while that process has much to take in. */
static enum ibv_wc_status dispatch(const struct packet *it)
{
    struct sockaddr_un at = place(it->to >> 8);
    char fault[sizeof at.sun_path + 8];
    snprintf(fault, sizeof fault, "%s/cut", wire);
    if (!access(fault, F_OK))
        return IBV_WC_RETRY_EXC_ERR;
    snprintf(fault, sizeof fault, "%s/fail", wire);
    if (!unlink(fault))
        return IBV_WC_RETRY_EXC_ERR;
    snprintf(fault, sizeof fault, "%s/slow", wire);
    if (!access(fault, F_OK))
        usleep(20000);
    size_t len = offsetof(struct packet, bytes) + it->len;
    ssize_t sent = sendto(wire_in, it, len, MSG_NOSIGNAL, (struct sockaddr *)&at, sizeof at);
    return sent == (ssize_t)len ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR;
}

static void *send_on_wire(void *none);

static void *listen_at_wire(void *none)
{
    static struct packet it;
    ssize_t len;
    while ((len = recv(wire_in, &it, sizeof it, 0)) >= 0) {
        pthread_mutex_lock(&lock);
        if (len < (ssize_t)offsetof(struct packet, bytes))
            tell_all(is_down() ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE);
        else
            arrive(&it, it.bytes);
        pthread_mutex_unlock(&lock);
    }
    return none;
}

static void join_wire(void)
{
    pthread_t thread;
    wire = getenv("SHUNT_TEST_WIRE");
    if (!wire || wire_in >= 0)
        return;
    self = getpid() & 0xffff;
    struct sockaddr_un at = place(self);
    unlink(at.sun_path);
    snprintf(devices[0].dev_path, sizeof devices[0].dev_path, "%s", at.sun_path);
    wire_in = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (wire_in < 0 || bind(wire_in, (struct sockaddr *)&at, sizeof at) || pthread_create(&thread, NULL, listen_at_wire, NULL) ||
        pthread_create(&thread, NULL, send_on_wire, NULL))
        abort();
}

/* Gathers the bytes of a request. */
static enum ibv_wc_status gather(struct send *send, char *bytes, uint32_t *len)
{
    *len = 0;
    for (int i = 0; i < send->wr.num_sge; i++) {
        struct ibv_sge *sge = &send->sge[i];
        if (!find_mr(sge->lkey, sge->addr, sge->length))
            return IBV_WC_LOC_PROT_ERR;
        memcpy(bytes + *len, (void *)(uintptr_t)sge->addr, sge->length);
        *len += sge->length;
    }
    return IBV_WC_SUCCESS;
}

static void describe(struct packet *it, const struct qp *qp, const struct ibv_send_wr *wr, uint32_t len)
{
    it->from = qp->qp.qp_num, it->to = qp->attr.dest_qp_num, it->psn = qp->attr.sq_psn, it->opcode = wr->opcode;
    it->rkey = wr->wr.rdma.rkey, it->imm = wr->imm_data, it->len = len, it->addr = wr->wr.rdma.remote_addr;
}

/* Carries out one request; IBV_WC_GENERAL_ERR: it has to wait. */
static enum ibv_wc_status carry(struct qp *qp, struct send *send)
{
    struct qp *to = find_qp(qp->attr.dest_qp_num);
    struct ibv_send_wr *wr = &send->wr;
    static char bytes[1 << 20];
    static struct packet request;
    uint32_t len;
    enum ibv_wc_status status = gather(send, bytes, &len);
    if (status != IBV_WC_SUCCESS)
        return status;
    describe(&request, qp, wr, len);
    if (to && wr->opcode != IBV_WR_RDMA_WRITE && to->recv_head == to->recv_tail && qp->attr.rnr_retry == 7 && hears(to, &request))
        return IBV_WC_GENERAL_ERR;
    return arrive(&request, bytes);
}

static int is_for_wire(const struct qp *qp)
{
    return wire && qp->attr.qp_state == IBV_QPS_RTS && qp->send_head != qp->send_tail && !find_qp(qp->attr.dest_qp_num);
}

/* Of one request after the other, those of all queue pairs in turn. */
static void *send_on_wire(void *none)
{
    static struct packet request;
    uint32_t last_sent = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct qp *next = NULL;
        for (struct qp *qp = qps; qp; qp = qp->next)
            if (is_for_wire(qp) && (!next || next->qp.qp_num == last_sent))
                next = qp;
        if (!next) {
            pthread_cond_wait(&posted, &lock);
            continue;
        }
        unsigned at = next->send_head;
        struct send *send = &next->sends[at % DEEP];
        uint32_t len;
        enum ibv_wc_status status = gather(send, request.bytes, &len);
        if (status == IBV_WC_SUCCESS) {
            describe(&request, next, &send->wr, len);
            last_sent = next->qp.qp_num;
            next->is_sending = 1;
            pthread_mutex_unlock(&lock);
            status = dispatch(&request);
            pthread_mutex_lock(&lock);
            next->is_sending = 0;
            pthread_cond_broadcast(&done);
        }
        /* It may have failed meanwhile, and all that was posted with it. */
        if (next->attr.qp_state != IBV_QPS_RTS || next->send_head != at)
            continue;
        if (status != IBV_WC_SUCCESS) {
            fail(next, status);
            continue;
        }
        next->send_head++;
        sent(next, send, status);
    }
    return none;
}

static void progress(struct qp *qp)
{
    while (qp && qp->attr.qp_state == IBV_QPS_RTS && qp->send_head != qp->send_tail) {
        if (is_for_wire(qp)) {
            pthread_cond_signal(&posted);
            return;
        }
        struct send *send = &qp->sends[qp->send_head % DEEP];
        enum ibv_wc_status status = carry(qp, send);
        if (status == IBV_WC_GENERAL_ERR)
            return;
        if (status != IBV_WC_SUCCESS)
            return fail(qp, status);
        qp->send_head++;
        sent(qp, send, status);
    }
}

static int poll_cq(struct ibv_cq *from, int most, struct ibv_wc *wc)
{
    struct cq *cq = (struct cq *)from;
    int count = 0;
    pthread_mutex_lock(&lock);
    while (count < most && cq->head != cq->tail)
        wc[count++] = cq->ready[cq->head++ % DEEP];
    pthread_mutex_unlock(&lock);
    return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    pthread_mutex_lock(&lock);
    ((struct cq *)cq)->armed = !solicited_only;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int post_one(struct qp *qp, const struct ibv_send_wr *wr)
{
    if (qp->attr.qp_state != IBV_QPS_RTS && qp->attr.qp_state != IBV_QPS_ERR)
        return EINVAL;
    if (wr->num_sge > (int)qp->cap.max_send_sge)
        return EINVAL;
    if (qp->send_tail - qp->send_head >= qp->cap.max_send_wr)
        return ENOMEM;
    struct send *send = &qp->sends[qp->send_tail++ % DEEP];
    send->wr = *wr;
    memcpy(send->sge, wr->sg_list, wr->num_sge * sizeof *wr->sg_list);
    return 0;
}

static int post_send(struct ibv_qp *to, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct qp *qp = (struct qp *)to;
    int result = 0;
    pthread_mutex_lock(&lock);
    for (; wr && !result; wr = wr->next) {
        *bad = wr;
        result = post_one(qp, wr);
    }
    if (qp->attr.qp_state == IBV_QPS_ERR)
        fail(qp, IBV_WC_WR_FLUSH_ERR);
    else
        progress(qp);
    pthread_mutex_unlock(&lock);
    return result;
}

static int post_recv(struct ibv_qp *to, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct qp *qp = (struct qp *)to;
    int result = 0;
    pthread_mutex_lock(&lock);
    *bad = wr;
    if (qp->attr.qp_state == IBV_QPS_RESET || wr->next || wr->num_sge != 1)
        result = EINVAL;
    else if (qp->recv_tail - qp->recv_head >= qp->cap.max_recv_wr)
        result = ENOMEM;
    else {
        struct recv *recv = &qp->recvs[qp->recv_tail++ % DEEP];
        recv->wr = *wr;
        recv->sge = *wr->sg_list;
        if (qp->attr.qp_state == IBV_QPS_ERR)
            fail(qp, IBV_WC_WR_FLUSH_ERR);
        else
            progress(find_qp(qp->attr.dest_qp_num));
    }
    pthread_mutex_unlock(&lock);
    return result;
}

struct ibv_device **ibv_get_device_list(int *count)
{
    join_wire();
    int is_removed = wire && access(devices[0].dev_path, F_OK);
    *count = 4 - is_removed;
    return listed + is_removed;
}

void ibv_free_device_list(struct ibv_device **list) { (void)list; }
const char *ibv_get_device_name(struct ibv_device *it) { return it->name; }

struct ibv_context *ibv_open_device(struct ibv_device *it)
{
    if (it == &devices[1]) {
        errno = EACCES;
        return NULL;
    }
    int ends[2];
    struct ibv_context *context = calloc(1, sizeof *context);
    if (pipe2(ends, O_CLOEXEC))
        abort();
    context->device = it;
    context->async_fd = ends[0];
    context->cmd_fd = ends[1];
    context->num_comp_vectors = 3;
    context->ops.poll_cq = poll_cq;
    context->ops.req_notify_cq = req_notify_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    pthread_mutex_lock(&lock);
    unsigned at = 0;
    while (contexts[at])
        if (++at == sizeof contexts / sizeof *contexts)
            abort();
    contexts[at] = context;
    pthread_mutex_unlock(&lock);
    if (it == &devices[3])
        tell(context, IBV_EVENT_PORT_ERR);
    return context;
}

int ibv_close_device(struct ibv_context *context)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < sizeof contexts / sizeof *contexts; i++)
        if (contexts[i] == context)
            contexts[i] = NULL;
    pthread_mutex_unlock(&lock);
    close(context->async_fd);
    close(context->cmd_fd);
    free(context);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    *attr = (struct ibv_device_attr){ .max_qp_wr = 1024, .max_cqe = DEEP, .max_sge = 8, .phys_port_cnt = 1 };
    return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    int has_port = port == 1 || (port == 2 && wire);
    if (!has_port)
        return EINVAL;
    int down = port == 1 && (context->device == &devices[2] || is_down());
    *(struct ibv_port_attr *)attr = (struct ibv_port_attr){
        .state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096,
        .active_mtu = IBV_MTU_1024, .gid_tbl_len = 4, .max_msg_sz = 1 << 20, .link_layer = IBV_LINK_LAYER_ETHERNET,
    };
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    (void)context, (void)port;
    *gid = index < 2 ? gids[index] : (union ibv_gid){ 0 };
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t size)
{
    (void)context;
    if (size != sizeof *entry || flags || !port || port > 2)
        return EINVAL;
    if (index >= 2)
        return ENODATA;
    *entry = (struct ibv_gid_entry){ gids[index], index, port, index ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1, 0 };
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) { free(pd); return 0; }

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    if (length > LIMIT) {
        errno = ENOMEM;
        return NULL;
    }
    if ((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
        errno = EINVAL;
        return NULL;
    }
    struct mr *mr = calloc(1, sizeof *mr);
    pthread_mutex_lock(&lock);
    mr->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length };
    mr->mr.lkey = ++last;
    mr->mr.rkey = ++last;
    mr->access = access;
    mr->next = mrs;
    mrs = mr;
    pthread_mutex_unlock(&lock);
    return &mr->mr;
}

int ibv_dereg_mr(struct ibv_mr *it)
{
    pthread_mutex_lock(&lock);
    for (struct mr **at = &mrs; *at; at = &(*at)->next)
        if (*at == (struct mr *)it) {
            *at = (*at)->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(it);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    int ends[2];
    struct channel *channel = calloc(1, sizeof *channel);
    if (pipe2(ends, O_CLOEXEC))
        abort();
    channel->channel = (struct ibv_comp_channel){ .context = context, .fd = ends[0] };
    channel->in = ends[1];
    return &channel->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *it)
{
    close(it->fd);
    close(((struct channel *)it)->in);
    free(it);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int room, void *name, struct ibv_comp_channel *channel, int vector)
{
    if (vector < 0 || vector >= context->num_comp_vectors || room > DEEP) {
        errno = EINVAL;
        return NULL;
    }
    struct cq *cq = calloc(1, sizeof *cq);
    cq->cq.context = context;
    cq->cq.channel = channel;
    cq->cq.cq_context = name;
    cq->cq.cqe = room;
    return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *it)
{
    if (it->comp_events_completed)
        abort();
    free(it);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **name)
{
    if (read(channel->fd, cq, sizeof *cq) != sizeof *cq)
        return -1;
    *name = (*cq)->cq_context;
    (*cq)->comp_events_completed++;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count) { cq->comp_events_completed -= count; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    if (init->qp_type != IBV_QPT_RC || init->srq || init->sq_sig_all || init->cap.max_send_sge > 8) {
        errno = EINVAL;
        return NULL;
    }
    struct qp *qp = calloc(1, sizeof *qp);
    pthread_mutex_lock(&lock);
    /* On a wire the upper 16 of 24 bits say whose it is. */
    static uint32_t made;
    uint32_t number = wire ? self << 8 | (++made & 0xff) : ++last;
    qp->qp = (struct ibv_qp){
        .context = pd->context, .pd = pd, .send_cq = init->send_cq, .recv_cq = init->recv_cq, .qp_num = number,
        .qp_type = IBV_QPT_RC,
    };
    qp->cap = init->cap;
    qp->next = qps;
    qps = qp;
    pthread_mutex_unlock(&lock);
    return &qp->qp;
}

int ibv_modify_qp(struct ibv_qp *it, struct ibv_qp_attr *attr, int mask)
{
    /* What the kernel asks for at each step of an RC queue pair (ib_modify_qp_is_ok). */
    static const int masks[] = {
        [IBV_QPS_INIT] = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        [IBV_QPS_RTR] = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        [IBV_QPS_RTS] = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_MAX_QP_RD_ATOMIC,
        [IBV_QPS_ERR] = IBV_QP_STATE,
    };
    struct qp *qp = (struct qp *)it;
    struct ibv_qp_attr *own = &qp->attr;
    int result = 0;
    pthread_mutex_lock(&lock);
    enum ibv_qp_state to = attr->qp_state;
    int is_next = to == IBV_QPS_ERR || (to <= IBV_QPS_RTS && to == own->qp_state + 1);
    if (!is_next || mask != masks[to]) {
        result = EINVAL;
    } else if (to == IBV_QPS_INIT) {
        if (!attr->port_num || attr->port_num > 2)
            result = EINVAL;
        own->qp_access_flags = attr->qp_access_flags;
    } else if (to == IBV_QPS_RTR) {
        struct ibv_ah_attr *ah = &attr->ah_attr;
        if (!ah->is_global || ah->grh.sgid_index != 1 || memcmp(&ah->grh.dgid, &gids[1], 16) || !ah->port_num || ah->port_num > 2 ||
            !ah->grh.hop_limit || attr->path_mtu != IBV_MTU_1024)
            result = EINVAL;
        own->dest_qp_num = attr->dest_qp_num;
        own->rq_psn = attr->rq_psn;
    } else if (to == IBV_QPS_RTS) {
        own->sq_psn = attr->sq_psn;
        own->rnr_retry = attr->rnr_retry;
        own->timeout = attr->timeout;
    }
    if (!result && to == IBV_QPS_ERR)
        fail(qp, IBV_WC_WR_FLUSH_ERR);
    else if (!result)
        own->qp_state = to;
    pthread_mutex_unlock(&lock);
    return result;
}

int ibv_query_qp(struct ibv_qp *it, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    (void)mask;
    *attr = ((struct qp *)it)->attr;
    init->cap = ((struct qp *)it)->cap;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *it)
{
    pthread_mutex_lock(&lock);
    for (struct qp **at = &qps; *at; at = &(*at)->next)
        if (*at == (struct qp *)it) {
            *at = (*at)->next;
            break;
        }
    while (((struct qp *)it)->is_sending)
        pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
    free(it);
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    return read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }
