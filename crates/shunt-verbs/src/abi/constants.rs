//! Numbers of `infiniband/verbs.h`.

use core::ffi::{c_int, c_uint};

/// Makes the constants, and for the test of the layout a list of their names and values.
macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)+) => {
        $(pub const $name: $type = $value;)+

        #[cfg(test)]
        #[allow(clippy::cast_lossless, reason = "of several types")]
        pub(super) const ALL: &[(&str, i64)] = &[$((stringify!($name), $name as i64),)+];
    };
}

constants! {
    IBV_QPS_RESET: c_int = 0;
    IBV_QPS_INIT: c_int = 1;
    IBV_QPS_RTR: c_int = 2;
    IBV_QPS_RTS: c_int = 3;
    IBV_QPS_SQD: c_int = 4;
    IBV_QPS_SQE: c_int = 5;
    IBV_QPS_ERR: c_int = 6;

    IBV_QPT_RC: c_int = 2;

    IBV_QP_STATE: c_int = 1 << 0;
    IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
    IBV_QP_PKEY_INDEX: c_int = 1 << 4;
    IBV_QP_PORT: c_int = 1 << 5;
    IBV_QP_AV: c_int = 1 << 7;
    IBV_QP_PATH_MTU: c_int = 1 << 8;
    IBV_QP_TIMEOUT: c_int = 1 << 9;
    IBV_QP_RETRY_CNT: c_int = 1 << 10;
    IBV_QP_RNR_RETRY: c_int = 1 << 11;
    IBV_QP_RQ_PSN: c_int = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
    IBV_QP_SQ_PSN: c_int = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    IBV_QP_DEST_QPN: c_int = 1 << 20;

    IBV_ACCESS_LOCAL_WRITE: c_int = 1;
    IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;

    IBV_WR_RDMA_WRITE: c_int = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
    IBV_WR_SEND: c_int = 2;

    IBV_SEND_SIGNALED: c_uint = 1 << 1;
    IBV_SEND_SOLICITED: c_uint = 1 << 2;

    IBV_WC_SEND: c_int = 0;
    IBV_WC_RDMA_WRITE: c_int = 1;
    IBV_WC_RECV: c_int = 1 << 7;
    IBV_WC_RECV_RDMA_WITH_IMM: c_int = (1 << 7) + 1;
    IBV_WC_WITH_IMM: c_uint = 1 << 1;

    IBV_WC_SUCCESS: c_int = 0;
    IBV_WC_LOC_LEN_ERR: c_int = 1;
    IBV_WC_LOC_QP_OP_ERR: c_int = 2;
    IBV_WC_LOC_PROT_ERR: c_int = 4;
    IBV_WC_WR_FLUSH_ERR: c_int = 5;
    IBV_WC_BAD_RESP_ERR: c_int = 7;
    IBV_WC_LOC_ACCESS_ERR: c_int = 8;
    IBV_WC_REM_INV_REQ_ERR: c_int = 9;
    IBV_WC_REM_ACCESS_ERR: c_int = 10;
    IBV_WC_REM_OP_ERR: c_int = 11;
    IBV_WC_RETRY_EXC_ERR: c_int = 12;
    IBV_WC_RNR_RETRY_EXC_ERR: c_int = 13;
    IBV_WC_FATAL_ERR: c_int = 19;
    IBV_WC_RESP_TIMEOUT_ERR: c_int = 20;

    IBV_PORT_NOP: c_int = 0;
    IBV_PORT_DOWN: c_int = 1;
    IBV_PORT_INIT: c_int = 2;
    IBV_PORT_ARMED: c_int = 3;
    IBV_PORT_ACTIVE: c_int = 4;
    IBV_PORT_ACTIVE_DEFER: c_int = 5;

    IBV_LINK_LAYER_UNSPECIFIED: c_int = 0;
    IBV_LINK_LAYER_INFINIBAND: c_int = 1;
    IBV_LINK_LAYER_ETHERNET: c_int = 2;

    IBV_GID_TYPE_IB: c_int = 0;
    IBV_GID_TYPE_ROCE_V1: c_int = 1;
    IBV_GID_TYPE_ROCE_V2: c_int = 2;

    IBV_MTU_256: c_int = 1;
    IBV_MTU_512: c_int = 2;
    IBV_MTU_1024: c_int = 3;
    IBV_MTU_2048: c_int = 4;
    IBV_MTU_4096: c_int = 5;

    IBV_EVENT_CQ_ERR: c_int = 0;
    IBV_EVENT_QP_FATAL: c_int = 1;
    IBV_EVENT_QP_REQ_ERR: c_int = 2;
    IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
    IBV_EVENT_DEVICE_FATAL: c_int = 8;
    IBV_EVENT_PORT_ACTIVE: c_int = 9;
    IBV_EVENT_PORT_ERR: c_int = 10;
    IBV_EVENT_GID_CHANGE: c_int = 18;
}
