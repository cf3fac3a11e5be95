//! Completion queues, and the channels by which they tell a thread that sleeps.

use core::ffi::c_int;
use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::abi::constants as abi;
use crate::abi::structs::{ibv_comp_channel, ibv_cq, ibv_wc};
use crate::context::{Context, checked, last_errno};
use crate::error::Refused;
use crate::port::{BATCH, Channel, Completions, Queue};
use crate::value::{Completion, Done, Failure, PairNumber};

/// A channel. Its descriptor is readable when [`Channel::next`] has a name.
#[derive(Debug)]
pub struct CompletionChannel {
    inner: Arc<ChannelInner>,
}

#[derive(Debug)]
struct ChannelInner {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: calls on it may come from any thread.
unsafe impl Send for ChannelInner {}
// SAFETY: and from several at a time: it is a descriptor.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: this value alone destroys it, and the queues that tell it keep it.
        unsafe { (self.context.functions().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

impl CompletionChannel {
    /// A channel that does not block.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Refused> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.functions().ibv_create_comp_channel)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| last_errno("ibv_create_comp_channel"))?;
        let channel = Self { inner: Arc::new(ChannelInner { raw, context: context.clone() }) };
        rustix::io::ioctl_fionbio(channel.as_fd(), true)
            .map_err(|errno| Refused::of("ioctl FIONBIO", errno.raw_os_error()))?;
        Ok(channel)
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel was made by libibverbs and lives; its descriptor is open as long.
        unsafe { BorrowedFd::borrow_raw(self.inner.raw.as_ref().fd) }
    }
}

impl Channel for CompletionChannel {
    fn next(&self) -> io::Result<Option<u64>> {
        let functions = self.inner.context.functions();
        let (mut queue, mut name) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives, and both places are this function's.
        let failed =
            unsafe { (functions.ibv_get_cq_event)(self.inner.raw.as_ptr(), &mut queue, &mut name) };
        if failed != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // At once: who destroys a queue waits for what was not acknowledged (ibv_ack_cq_events(3)).
        // SAFETY: the queue is the one of which the event tells. It was alive then, and whoever destroys it waits for this.
        unsafe { (functions.ibv_ack_cq_events)(queue, 1) };
        Ok(Some(name.addr() as u64))
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<QueueInner>,
}

#[derive(Debug)]
pub(crate) struct QueueInner {
    pub(crate) raw: NonNull<ibv_cq>,
    context: Arc<Context>,
    // Is there as long as it can be told.
    _channel: Arc<ChannelInner>,
}

// SAFETY: calls on it may come from any thread.
unsafe impl Send for QueueInner {}
// SAFETY: and from several at a time: providers lock a queue.
unsafe impl Sync for QueueInner {}

impl Drop for QueueInner {
    fn drop(&mut self) {
        // SAFETY: this value alone destroys it, and the queue pairs that complete there keep it.
        unsafe { (self.context.functions().ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

impl CompletionQueue {
    /// See [`crate::port::Port::queue`].
    pub(crate) fn new(
        context: &Arc<Context>,
        room: u32,
        channel: &CompletionChannel,
        vector: u32,
        name: u64,
    ) -> Result<Self, Refused> {
        // SAFETY: the context is open, and the number does not change.
        let vectors = unsafe { context.raw.as_ref() }.num_comp_vectors;
        let vector = c_int::try_from(vector).ok().filter(|vector| *vector < vectors);
        let vector = vector.ok_or(Refused::Invalid("completion vector"))?;
        let room = c_int::try_from(room).map_err(|_| Refused::Invalid("number of completions"))?;
        let name = usize::try_from(name).map_err(|_| Refused::Invalid("name of a queue"))?;
        let name = ptr::without_provenance_mut(name);
        // SAFETY: context and channel live; the name comes back in events and is never followed.
        let raw = unsafe {
            let (context_raw, channel) = (context.raw.as_ptr(), channel.inner.raw.as_ptr());
            (context.functions().ibv_create_cq)(context_raw, room, name, channel, vector)
        };
        let raw = NonNull::new(raw).ok_or_else(|| last_errno("ibv_create_cq"))?;
        let _channel = channel.inner.clone();
        Ok(Self { inner: Arc::new(QueueInner { raw, context: context.clone(), _channel }) })
    }
}

impl Queue for CompletionQueue {
    fn poll(&self, into: &mut Completions) -> Result<usize, Refused> {
        let mut taken = [ibv_wc::default(); BATCH];
        let room = into.room();
        // SAFETY: the context is open; its table of functions does not change.
        let poll = unsafe { self.inner.context.raw.as_ref() }.ops.poll_cq;
        let poll = poll.ok_or(Refused::Invalid("function poll_cq"))?;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "a small constant"
        )]
        // SAFETY: the queue lives, and there is room for so many.
        let count = unsafe { poll(self.inner.raw.as_ptr(), room as c_int, taken.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| last_errno("ibv_poll_cq"))?;
        taken.iter().take(count).for_each(|wc| into.push(completion(wc)));
        Ok(count)
    }

    fn arm(&self) -> Result<(), Refused> {
        // SAFETY: the context is open; its table of functions does not change.
        let arm = unsafe { self.inner.context.raw.as_ref() }.ops.req_notify_cq;
        let arm = arm.ok_or(Refused::Invalid("function req_notify_cq"))?;
        // SAFETY: the queue lives.
        checked("ibv_req_notify_cq", unsafe { arm(self.inner.raw.as_ptr(), 0) })
    }
}

/// What the library says of a request.
fn completion(wc: &ibv_wc) -> Completion {
    let done = || match wc.opcode {
        abi::IBV_WC_RECV => Done::Received(wc.byte_len),
        abi::IBV_WC_RECV_RDMA_WITH_IMM => {
            Done::Written { length: wc.byte_len, immediate: u32::from_be(wc.imm_data) }
        }
        _ => Done::Sent,
    };
    let outcome = match wc.status {
        abi::IBV_WC_SUCCESS => Ok(done()),
        status => Err(failure(status)),
    };
    Completion { id: wc.wr_id, pair: PairNumber(wc.qp_num), outcome }
}

const fn failure(status: c_int) -> Failure {
    match status {
        abi::IBV_WC_LOC_LEN_ERR => Failure::Length,
        abi::IBV_WC_LOC_PROT_ERR | abi::IBV_WC_LOC_ACCESS_ERR => Failure::LocalAccess,
        abi::IBV_WC_WR_FLUSH_ERR => Failure::Flushed,
        abi::IBV_WC_REM_INV_REQ_ERR => Failure::RemoteRequest,
        abi::IBV_WC_REM_ACCESS_ERR => Failure::RemoteAccess,
        abi::IBV_WC_REM_OP_ERR | abi::IBV_WC_BAD_RESP_ERR => Failure::RemoteOperation,
        abi::IBV_WC_RETRY_EXC_ERR | abi::IBV_WC_RESP_TIMEOUT_ERR => Failure::Retries,
        abi::IBV_WC_RNR_RETRY_EXC_ERR => Failure::ReceiverNotReady,
        abi::IBV_WC_FATAL_ERR | abi::IBV_WC_LOC_QP_OP_ERR => Failure::Device,
        other => Failure::Other(other.unsigned_abs()),
    }
}
