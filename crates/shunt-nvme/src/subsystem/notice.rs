//! What is told to connections other than that of a call.

/// What concerns other connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// An Asynchronous Event Request of this controller's Admin Queue is to be completed so.
    AsyncEvent {
        /// The controller.
        cntlid: u16,
        /// The command's identifier.
        cid: u16,
        /// The result.
        result: u32,
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
