//! Queue pairs of reliable connections.

use core::ffi::c_int;
use core::ptr::{self, NonNull};
use std::io;
use std::sync::Arc;

use crate::abi::constants as abi;
use crate::abi::structs::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_recv_wr, ibv_send_wr, ibv_sge, rdma,
};
use crate::completion::{CompletionQueue, QueueInner};
use crate::context::{Context, checked, last_errno};
use crate::error::Refused;
use crate::port::{Pair, Patience};
use crate::value::{
    Capacity, Mtu, Operation, PacketNumber, PairNumber, PairState, PeerPair, ReceiveRequest,
    SendRequest,
};

/// Pieces of a send request that [`Pair::post_send`] takes.
pub(crate) const PIECES: usize = 4;
/// Send requests of which the device hears at once.
const CHAIN: usize = 4;

/// How long a peer without receive requests is to wait before it asks again: 0.64 ms (IBTA table 45).
const NOT_READY_TIMER: u8 = 12;
/// Routers on the way that a packet may pass.
const HOPS: u8 = 64;

/// Where a queue pair is on its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    /// The longest packet that the port takes.
    pub(crate) mtu: Mtu,
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    raw: NonNull<ibv_qp>,
    place: Place,
    context: Arc<Context>,
    // Is there as long as completions can come.
    _queue: Arc<QueueInner>,
}

// SAFETY: calls on it may come from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: and from several at a time: providers lock each work queue.
unsafe impl Sync for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: this value alone destroys it.
        unsafe { (self.context.functions().ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}

/// A request as the library has it, with room for its pieces, in front of another one.
fn raw_request(
    request: &SendRequest<'_>,
    pieces: &mut [ibv_sge; PIECES],
    next: *mut ibv_send_wr,
) -> Result<ibv_send_wr, Refused> {
    let room = pieces.get_mut(..request.pieces.len());
    let room = room.ok_or(Refused::Invalid("number of pieces"))?;
    for (to, piece) in room.iter_mut().zip(request.pieces) {
        *to = ibv_sge { addr: piece.address, length: piece.length, lkey: piece.key.0 };
    }
    let (opcode, to, immediate) = match request.operation {
        Operation::Send => (abi::IBV_WR_SEND, None, 0),
        Operation::Write(to) => (abi::IBV_WR_RDMA_WRITE, Some(to), 0),
        Operation::WriteWithImmediate(to, said) => {
            (abi::IBV_WR_RDMA_WRITE_WITH_IMM, Some(to), said)
        }
    };
    let signaled = if request.signaled { abi::IBV_SEND_SIGNALED } else { 0 };
    let solicited = if request.solicited { abi::IBV_SEND_SOLICITED } else { 0 };
    Ok(ibv_send_wr {
        wr_id: request.id,
        next,
        sg_list: pieces.as_mut_ptr(),
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "at most PIECES"
        )]
        num_sge: request.pieces.len() as c_int,
        opcode,
        send_flags: signaled | solicited,
        imm_data: immediate.to_be(),
        rdma: to.map_or(rdma::default(), |to| rdma {
            remote_addr: to.address,
            rkey: to.key.0,
            rest: [0; 2],
        }),
        rest: [0; 7],
    })
}

impl QueuePair {
    /// Posts at most [`CHAIN`] requests, as one list.
    fn post_some(&self, requests: &[SendRequest<'_>]) -> Result<(), Refused> {
        let mut pieces = [[ibv_sge { addr: 0, length: 0, lkey: 0 }; PIECES]; CHAIN];
        let mut list = [const { None }; CHAIN];
        let mut first = ptr::null_mut();
        for (request, (place, pieces)) in
            requests.iter().zip(list.iter_mut().zip(&mut pieces)).rev()
        {
            first = ptr::from_mut(place.insert(raw_request(request, pieces, first)?));
        }
        // SAFETY: the context is open; its table of functions does not change.
        let post = unsafe { self.context.raw.as_ref() }.ops.post_send;
        let post = post.ok_or(Refused::Invalid("function post_send"))?;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives; the requests and their pieces, which lie in `list` and `pieces`, are read before the call
        // returns. What the pieces name is checked by the device against what was registered.
        posted("ibv_post_send", unsafe { post(self.raw.as_ptr(), first, &raw mut bad) })
    }

    /// See [`crate::port::Port::pair`].
    pub(crate) fn new(
        context: &Arc<Context>,
        place: Place,
        queue: &CompletionQueue,
        capacity: Capacity,
    ) -> Result<Self, Refused> {
        let cq = queue.inner.raw.as_ptr();
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: capacity.send,
                max_recv_wr: capacity.receive,
                max_send_sge: capacity.pieces,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: abi::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue live, and the attributes are this function's.
        let raw = unsafe {
            (context.functions().ibv_create_qp)(context.domain.as_ptr(), &raw mut attributes)
        };
        let raw = NonNull::new(raw).ok_or_else(|| last_errno("ibv_create_qp"))?;
        Ok(Self { raw, place, context: context.clone(), _queue: queue.inner.clone() })
    }

    fn modify(&self, mut attributes: ibv_qp_attr, mask: c_int) -> Result<(), Refused> {
        let modify = self.context.functions().ibv_modify_qp;
        // SAFETY: the queue pair lives, and the attributes are this function's.
        let returned = unsafe { modify(self.raw.as_ptr(), &raw mut attributes, mask) };
        match checked("ibv_modify_qp", returned) {
            // What the kernel answers to a step that the state does not allow.
            Err(Refused::System(_, error)) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(Refused::State)
            }
            other => other,
        }
    }
}

const fn mtu(mtu: Mtu) -> c_int {
    match mtu {
        Mtu::B256 => abi::IBV_MTU_256,
        Mtu::B512 => abi::IBV_MTU_512,
        Mtu::B1024 => abi::IBV_MTU_1024,
        Mtu::B2048 => abi::IBV_MTU_2048,
        Mtu::B4096 => abi::IBV_MTU_4096,
    }
}

/// What a function that posts returns.
fn posted(tried: &'static str, returned: c_int) -> Result<(), Refused> {
    match checked(tried, returned) {
        Err(Refused::System(_, error)) if error.kind() == io::ErrorKind::OutOfMemory => {
            Err(Refused::Full)
        }
        Err(Refused::System(_, error)) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(Refused::State)
        }
        other => other,
    }
}

impl Pair for QueuePair {
    fn number(&self) -> PairNumber {
        // SAFETY: libibverbs made it, and its number does not change.
        PairNumber(unsafe { (*self.raw.as_ptr()).qp_num })
    }

    fn state(&self) -> Result<PairState, Refused> {
        let mut attributes = ibv_qp_attr::default();
        let mut initial = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        let query = self.context.functions().ibv_query_qp;
        // SAFETY: the queue pair lives, and both places are this function's.
        let returned = unsafe {
            query(self.raw.as_ptr(), &raw mut attributes, abi::IBV_QP_STATE, &raw mut initial)
        };
        checked("ibv_query_qp", returned)?;
        Ok(match attributes.qp_state {
            abi::IBV_QPS_RESET => PairState::Reset,
            abi::IBV_QPS_INIT => PairState::Initialized,
            abi::IBV_QPS_RTR => PairState::ReadyToReceive,
            abi::IBV_QPS_RTS => PairState::ReadyToSend,
            abi::IBV_QPS_ERR => PairState::Error,
            _ => PairState::Other,
        })
    }

    fn initialize(&self) -> Result<(), Refused> {
        let attributes = ibv_qp_attr {
            qp_state: abi::IBV_QPS_INIT,
            port_num: self.place.port,
            qp_access_flags: abi::IBV_ACCESS_REMOTE_WRITE.unsigned_abs(),
            ..ibv_qp_attr::default()
        };
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_PKEY_INDEX
            | abi::IBV_QP_PORT
            | abi::IBV_QP_ACCESS_FLAGS;
        self.modify(attributes, mask)
    }

    fn receive_from(&self, peer: &PeerPair) -> Result<(), Refused> {
        let attributes = ibv_qp_attr {
            qp_state: abi::IBV_QPS_RTR,
            path_mtu: mtu(peer.mtu.min(self.place.mtu)),
            dest_qp_num: peer.number.0,
            rq_psn: peer.first_packet.get(),
            min_rnr_timer: NOT_READY_TIMER,
            ah_attr: ibv_ah_attr {
                // By its GID in any case, which RoCE asks for and InfiniBand allows.
                is_global: 1,
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: peer.gid.0 },
                    sgid_index: self.place.gid_index,
                    hop_limit: HOPS,
                    ..ibv_global_route::default()
                },
                port_num: self.place.port,
                ..ibv_ah_attr::default()
            },
            ..ibv_qp_attr::default()
        };
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_AV
            | abi::IBV_QP_PATH_MTU
            | abi::IBV_QP_DEST_QPN
            | abi::IBV_QP_RQ_PSN
            | abi::IBV_QP_MAX_DEST_RD_ATOMIC
            | abi::IBV_QP_MIN_RNR_TIMER;
        self.modify(attributes, mask)
    }

    fn send_with(&self, first: PacketNumber, patience: Patience) -> Result<(), Refused> {
        let attributes = ibv_qp_attr {
            qp_state: abi::IBV_QPS_RTS,
            sq_psn: first.get(),
            timeout: patience.timeout,
            retry_cnt: patience.retries,
            rnr_retry: patience.not_ready,
            ..ibv_qp_attr::default()
        };
        let mask = abi::IBV_QP_STATE
            | abi::IBV_QP_SQ_PSN
            | abi::IBV_QP_TIMEOUT
            | abi::IBV_QP_RETRY_CNT
            | abi::IBV_QP_RNR_RETRY
            | abi::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attributes, mask)
    }

    fn fail(&self) -> Result<(), Refused> {
        let attributes = ibv_qp_attr { qp_state: abi::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        self.modify(attributes, abi::IBV_QP_STATE)
    }

    fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<(), Refused> {
        requests.chunks(CHAIN).try_for_each(|some| self.post_some(some))
    }

    fn post_receive(&self, request: &ReceiveRequest) -> Result<(), Refused> {
        let piece = request.piece;
        let mut room = ibv_sge { addr: piece.address, length: piece.length, lkey: piece.key.0 };
        let mut raw = ibv_recv_wr {
            wr_id: request.id,
            next: ptr::null_mut(),
            sg_list: &raw mut room,
            num_sge: 1,
        };
        // SAFETY: the context is open; its table of functions does not change.
        let post = unsafe { self.context.raw.as_ref() }.ops.post_recv;
        let post = post.ok_or(Refused::Invalid("function post_recv"))?;
        let mut bad = ptr::null_mut();
        // SAFETY: as in `post_some`.
        posted("ibv_post_recv", unsafe { post(self.raw.as_ptr(), &raw mut raw, &raw mut bad) })
    }
}
