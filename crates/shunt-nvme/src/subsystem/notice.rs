//! What is told to connections other than that of a call.

use crate::wire::Status;

/// What concerns other connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A command of this controller's Admin Queue that was answered with
    /// [`Reply::Later`](super::Reply::Later) is to be completed so.
    Completed {
        /// The controller.
        cntlid: u16,
        /// The command's identifier.
        cid: u16,
        /// The status.
        status: Status,
        /// The result.
        result: u32,
    },
    /// A command of an I/O queue is to be aborted, if it can be; then
    /// [`super::Target::aborted`] is to be called, after the command was answered.
    Abort {
        /// The controller.
        cntlid: u16,
        /// The queue.
        qid: u16,
        /// The command's identifier.
        cid: u16,
    },
    /// The controller is gone: all of its connections are to be closed.
    Ended {
        /// The controller.
        cntlid: u16,
    },
    /// The controller was disabled: the connections of its I/O queues are to be closed.
    Reset {
        /// The controller.
        cntlid: u16,
    },
    /// The host asks for a shutdown: what is written is to be made durable, and then
    /// [`super::Target::shutdown_complete`] to be called.
    Shutdown {
        /// The controller.
        cntlid: u16,
    },
}
