//! The operations: each once, with its name and its arguments.

use std::fmt;

use super::args::{Arg, Kind, Var, flags, names};

flags! {
    /// Flags of sends and receives.
    Flags:
        /// Do not wait.
        DONTWAIT = libc::MSG_DONTWAIT,
        /// Leave the bytes there.
        PEEK = libc::MSG_PEEK,
        /// Wait for all of them.
        WAITALL = libc::MSG_WAITALL,
        /// Throw the bytes away.
        TRUNC = libc::MSG_TRUNC,
        /// Urgent data.
        OOB = libc::MSG_OOB,
        /// More will come.
        MORE = libc::MSG_MORE,
        /// No SIGPIPE.
        NOSIGNAL = libc::MSG_NOSIGNAL;
    /// Events of poll and epoll.
    Events:
        /// EPOLLIN and POLLIN.
        IN = libc::EPOLLIN,
        /// EPOLLOUT and POLLOUT.
        OUT = libc::EPOLLOUT,
        /// EPOLLPRI and POLLPRI.
        PRI = libc::EPOLLPRI,
        /// EPOLLERR and POLLERR.
        ERR = libc::EPOLLERR,
        /// EPOLLHUP and POLLHUP.
        HUP = libc::EPOLLHUP,
        /// POLLNVAL.
        NVAL = 0x20,
        /// EPOLLRDNORM and POLLRDNORM.
        RDNORM = libc::EPOLLRDNORM,
        /// EPOLLWRNORM and POLLWRNORM.
        WRNORM = libc::EPOLLWRNORM,
        /// EPOLLRDHUP and POLLRDHUP.
        RDHUP = libc::EPOLLRDHUP,
        /// EPOLLEXCLUSIVE.
        EXCLUSIVE = libc::EPOLLEXCLUSIVE,
        /// EPOLLONESHOT.
        ONESHOT = libc::EPOLLONESHOT,
        /// EPOLLET.
        ET = libc::EPOLLET;
    /// Flags of new sockets.
    SocketFlags:
        /// SOCK_NONBLOCK.
        NONBLOCK = libc::SOCK_NONBLOCK,
        /// SOCK_CLOEXEC.
        CLOEXEC = libc::SOCK_CLOEXEC;
    /// Flags of splice.
    SpliceFlags:
        /// SPLICE_F_MOVE.
        MOVE = 1,
        /// SPLICE_F_NONBLOCK.
        NONBLOCK = 2,
        /// SPLICE_F_MORE.
        MORE = 4;
}

names! {
    /// By which function bytes are sent.
    SendBy:
        /// send(2)
        Send = "send",
        /// write(2)
        Write = "write",
        /// writev(2) of three parts
        Writev = "writev",
        /// sendto(2)
        Sendto = "sendto",
        /// sendmsg(2) of three parts
        Sendmsg = "sendmsg",
        /// sendmmsg(2) of two messages
        Sendmmsg = "sendmmsg",
        /// pwritev2(2) without an offset
        Pwritev2 = "pwritev2";
    /// By which function bytes are received.
    RecvBy:
        /// recv(2)
        Recv = "recv",
        /// read(2)
        Read = "read",
        /// readv(2) into three parts
        Readv = "readv",
        /// recvfrom(2) with room for an address
        Recvfrom = "recvfrom",
        /// recvmsg(2) into three parts, with room for control messages
        Recvmsg = "recvmsg",
        /// recvmmsg(2) into two messages
        Recvmmsg = "recvmmsg",
        /// preadv2(2) without an offset
        Preadv2 = "preadv2";
    /// What shutdown(2) ends.
    How:
        /// What is sent.
        Wr = "WR",
        /// What is received.
        Rd = "RD",
        /// Both.
        Both = "RDWR";
    /// By which function a descriptor is duplicated.
    DupBy:
        /// dup(2)
        Dup = "dup",
        /// fcntl(2), F_DUPFD from 0 on
        Fcntl = "F_DUPFD",
        /// fcntl(2), F_DUPFD_CLOEXEC from 0 on
        Cloexec = "F_DUPFD_CLOEXEC";
    /// By which function a descriptor is put in another's place.
    Dup2By:
        /// dup2(2)
        Dup2 = "dup2",
        /// dup3(2) with O_CLOEXEC
        Dup3 = "dup3";
    /// By which function descriptors are closed.
    CloseBy:
        /// close(2)
        Close = "close",
        /// close_range(2) of the one
        Range = "close_range";
    /// What is opened.
    Opened:
        /// A memfd with so many bytes of its stream.
        Memory = "memory",
        /// /dev/null
        Null = "null",
        /// A directory.
        Directory = "directory",
        /// A file of /proc.
        Proc = "proc",
        /// A datagram socket.
        Datagram = "datagram",
        /// An eventfd.
        Event = "event";
    /// By which function a program waits for readiness.
    PollBy:
        /// poll(2)
        Poll = "poll",
        /// ppoll(2)
        Ppoll = "ppoll";
    /// By which function a program waits for readiness in sets.
    SelectBy:
        /// select(2)
        Select = "select",
        /// pselect(2)
        Pselect = "pselect";
    /// The first argument of select(2).
    Top:
        /// The highest descriptor and one.
        Exact = "top",
        /// FD_SETSIZE, whatever is in the sets.
        Size = "FD_SETSIZE",
        /// As many as the process could have, which is beyond the sets' end.
        Limit = "limit";
    /// By which function a program waits at an epoll instance.
    EpollBy:
        /// epoll_wait(2)
        Wait = "epoll_wait",
        /// epoll_pwait(2)
        Pwait = "epoll_pwait",
        /// epoll_pwait2(2)
        Pwait2 = "epoll_pwait2";
    /// What epoll_ctl(2) does.
    Control:
        /// EPOLL_CTL_ADD
        Add = "ADD",
        /// EPOLL_CTL_MOD
        Mod = "MOD",
        /// EPOLL_CTL_DEL
        Del = "DEL";
    /// Options of sockets.
    OptionName:
        /// SO_RCVLOWAT
        Lowat = "SO_RCVLOWAT",
        /// SO_RCVTIMEO, in milliseconds
        RecvTimeout = "SO_RCVTIMEO",
        /// SO_SNDTIMEO, in milliseconds
        SendTimeout = "SO_SNDTIMEO",
        /// SO_PEEK_OFF
        PeekOff = "SO_PEEK_OFF",
        /// TCP_INQ
        Inq = "TCP_INQ",
        /// SO_LINGER on, in seconds
        Linger = "SO_LINGER",
        /// SO_SNDBUF
        SendBuffer = "SO_SNDBUF",
        /// SO_RCVBUF
        RecvBuffer = "SO_RCVBUF",
        /// SO_OOBINLINE
        OobInline = "SO_OOBINLINE",
        /// SO_KEEPALIVE
        KeepAlive = "SO_KEEPALIVE",
        /// SO_ERROR
        Error = "SO_ERROR";
    /// How O_NONBLOCK and O_ASYNC are set.
    FlagBy:
        /// fcntl(2), F_SETFL
        Fcntl = "F_SETFL",
        /// ioctl(2), FIONBIO or FIOASYNC
        Ioctl = "ioctl";
    /// When a handler of pthread_atfork(3) runs.
    Stage:
        /// Before the fork.
        Prepare = "prepare",
        /// After it, in the parent.
        Parent = "parent",
        /// After it, in the child.
        Child = "child";
    /// What such a handler does.
    Inner:
        /// Sends ten bytes without waiting.
        Send = "send",
        /// Receives up to a hundred without waiting.
        Recv = "recv",
        /// poll(2) without waiting.
        Poll = "poll",
        /// Makes an epoll instance, adds the descriptor, closes the instance.
        Epoll = "epoll",
        /// A duplicate, which is closed again.
        Dup = "dup",
        /// A connection to the first listener, which is closed again.
        Connect = "connect";
    /// How another program is run.
    RunBy:
        /// system(3)
        System = "system",
        /// popen(3)
        Popen = "popen",
        /// posix_spawn(3)
        Spawn = "posix_spawn";
    /// Who makes connections.
    Visitor:
        /// The thread.
        Thread = "thread",
        /// A forked process for each.
        Forked = "forked";
    /// How a process is made.
    ForkBy:
        /// fork(2)
        Fork = "fork",
        /// A system call of which libc knows nothing.
        Raw = "clone";
}

/// The address of a listener, in whatever process that is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address(pub u8);

impl Arg for Address {
    fn read(text: &str) -> Option<Self> {
        Var::read(text).filter(|var| var.kind == Kind::Listener).map(|var| Self(var.n))
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        Var::new(Kind::Listener, self.0).show(out)
    }
}

/// A descriptor and what is waited for on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The descriptor.
    pub fd: Var,
    /// The events.
    pub events: Events,
}

impl Arg for Entry {
    fn read(text: &str) -> Option<Self> {
        let (fd, events) = text.split_once(':')?;
        Some(Self { fd: Var::read(fd)?, events: Events::read(events)? })
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{}:", self.fd)?;
        self.events.show(out)
    }

    fn vars(&self, each: &mut dyn FnMut(Var)) {
        each(self.fd);
    }
}

macro_rules! operations {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal ($($field:ident: $type:ty),*);)+) => {
        /// What an actor does. The descriptions name the arguments.
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "the fields are named in each operation's description")]
        pub enum Op { $($(#[doc = $doc])+ $name { $($field: $type),* },)+ }

        impl Op {
            /// Its name.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name { .. } => $text),+ }
            }

            /// An operation from its name and its arguments.
            ///
            /// # Errors
            /// A sentence that says what is wrong.
            pub fn parse(name: &str, args: &[&str]) -> Result<Self, String> {
                let mut args = args.iter().copied();
                let op = match name {
                    $($text => Self::$name { $($field: next(&mut args, stringify!($field))?),* },)+
                    _ => return Err(format!("no operation is called {name:?}")),
                };
                match args.next() {
                    Some(more) => Err(format!("{name} has no argument {more:?}")),
                    None => Ok(op),
                }
            }

            /// Writes it as it is read.
            ///
            /// # Errors
            /// Those of `out`.
            pub fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
                write!(out, "{}(", self.name())?;
                match self {
                    $(Self::$name { $($field),* } => {
                        let mut _between = "";
                        $(
                            out.write_str(_between)?;
                            $field.show(out)?;
                            _between = ", ";
                        )*
                    })+
                }
                out.write_char(')')
            }

            /// The descriptors that it names.
            pub fn vars(&self, _each: &mut dyn FnMut(Var)) {
                match self { $(Self::$name { $($field),* } => { $($field.vars(_each);)* })+ }
            }

            /// The same with one argument simpler.
            #[must_use]
            pub fn simpler(&self) -> Vec<Self> {
                let mut _all = Vec::new();
                match self {
                    $(Self::$name { $($field),* } => {
                        $(for simpler in $field.simpler() {
                            let mut other = self.clone();
                            if let Self::$name { $field, .. } = &mut other {
                                *$field = simpler;
                            }
                            _all.push(other);
                        })*
                    })+
                }
                _all
            }
        }
    };
}

impl Op {
    /// True when it sleeps, and goes on by itself.
    #[must_use]
    pub const fn takes_time(&self) -> bool {
        matches!(
            self,
            Self::Dwell { .. }
                | Self::Unacked { .. }
                | Self::Fill { .. }
                | Self::Drain { .. }
                | Self::Run { .. }
                | Self::Exec {}
                | Self::Fork { .. }
                | Self::Vfork { .. }
                | Self::Serve { .. }
                | Self::Visit { .. }
        )
    }
}

/// The next argument.
fn next<'a, T: Arg>(args: &mut impl Iterator<Item = &'a str>, name: &str) -> Result<T, String> {
    match args.next() {
        Some(text) => T::read(text).ok_or_else(|| format!("{name} cannot be {text:?}")),
        None => T::absent().ok_or_else(|| format!("{name} is missing")),
    }
}

operations! {
    /// A listener on loopback whose connections have buffers of `buffer` bytes; 0 leaves them alone.
    Listen = "listen" (fd: Var, buffer: u32);
    /// A connection to `to`, with TCP_NODELAY.
    Connect = "connect" (fd: Var, to: Address, buffer: u32, flags: SocketFlags);
    /// The next connection of `on`, with TCP_NODELAY.
    Accept = "accept" (fd: Var, on: Var, flags: SocketFlags);
    /// Sends a message and waits for the answer, `times`.
    Ping = "ping" (fd: Var, times: u32);
    /// Waits for a message and answers, `times`.
    Pong = "pong" (fd: Var, times: u32);
    /// One call that sends the next `len` bytes of the descriptor's stream.
    Send = "send" (fd: Var, len: u32, flags: Flags, by: SendBy);
    /// One call that receives up to `len` bytes.
    Recv = "recv" (fd: Var, len: u32, flags: Flags, by: RecvBy);
    /// Sends until `len` bytes are gone, through signals and full buffers.
    SendAll = "sendall" (fd: Var, len: u32);
    /// Receives until `len` bytes have come, or the end, through signals and empty buffers.
    RecvAll = "recvall" (fd: Var, len: u32);
    /// Sends without waiting until there is no room.
    Fill = "fill" (fd: Var);
    /// Receives without waiting until there is nothing.
    Drain = "drain" (fd: Var);
    /// shutdown(2)
    Shutdown = "shutdown" (fd: Var, how: How);
    /// close(2) and its relatives
    Close = "close" (fd: Var, by: CloseBy);
    /// A duplicate of `of`.
    Dup = "dup" (fd: Var, of: Var, by: DupBy);
    /// `to` becomes a duplicate of `fd`.
    Dup2 = "dup2" (fd: Var, to: Var, by: Dup2By);
    /// A file with `len` bytes where it has any.
    Open = "open" (fd: Var, what: Opened, len: u32);
    /// pipe(2), of `size` bytes unless that is 0.
    Pipe = "pipe" (reader: Var, writer: Var, size: u32);
    /// socketpair(2) of UNIX sockets
    Pair = "socketpair" (left: Var, right: Var);
    /// setsockopt(2)
    SetOption = "setsockopt" (fd: Var, name: OptionName, value: i32);
    /// getsockopt(2)
    GetOption = "getsockopt" (fd: Var, name: OptionName);
    /// O_NONBLOCK
    Nonblock = "nonblock" (fd: Var, on: u32, by: FlagBy);
    /// FIONREAD
    Available = "FIONREAD" (fd: Var);
    /// Waits a moment for SIOCOUTQ to become 0.
    Unacked = "SIOCOUTQ" (fd: Var);
    /// poll(2), for `timeout` milliseconds, or for ever where that is negative.
    Poll = "poll" (entries: Vec<Entry>, timeout: i32, by: PollBy);
    /// select(2), likewise.
    Select = "select" (entries: Vec<Entry>, timeout: i32, top: Top, by: SelectBy);
    /// epoll_create1(2)
    Epoll = "epoll_create" (epoll: Var);
    /// epoll_ctl(2)
    EpollCtl = "epoll_ctl" (epoll: Var, control: Control, fd: Var, events: Events);
    /// epoll_wait(2), likewise.
    EpollWait = "epoll_wait" (epoll: Var, max: u32, timeout: i32, by: EpollBy);
    /// splice(2)
    Splice = "splice" (from: Var, to: Var, len: u32, flags: SpliceFlags);
    /// splice(2) until `len` bytes have moved, through signals and full buffers.
    SpliceAll = "spliceall" (from: Var, to: Var, len: u32);
    /// sendfile(2), from an offset on unless that is negative.
    Sendfile = "sendfile" (to: Var, from: Var, offset: i32, len: u32);
    /// O_ASYNC, with this thread to be told.
    Async = "async" (fd: Var, on: u32, by: FlagBy);
    /// Whether SIGIO has come since this was last asked.
    Sigio = "SIGIO" ();
    /// SIGALRM, whose handler interrupts calls, for this thread each so many microseconds from now on; 0: no more.
    Timer = "timer" (micros: u32);
    /// A process that goes on as the actor `pN.0`.
    Fork = "fork" (child: u32, by: ForkBy);
    /// What a handler of pthread_atfork(3) does from now on, mostly with `fd`.
    AtFork = "atfork" (stage: Stage, what: Inner, fd: Var);
    /// This program once more in this process, with the descriptors that it inherits.
    Exec = "exec" ();
    /// A child of vfork(2) that closes `fd` and ends.
    Vfork = "vfork" (fd: Var);
    /// Another program, to its end.
    Run = "run" (by: RunBy);
    /// `fd` goes to whoever takes it, through a UNIX socket.
    Pass = "pass" (fd: Var, via: Var);
    /// A descriptor from there.
    Take = "take" (fd: Var, via: Var);
    /// pthread_cancel(3), of a thread of this process.
    Cancel = "cancel" (thread: u32);
    /// SIGKILL for a process of the plan.
    Kill = "kill" (process: u32);
    /// An event loop that accepts so many connections, one for each event, and sends back what comes.
    Serve = "serve" (listener: Var, connections: u32);
    /// One connection after the other to such a loop, with so many messages each.
    Visit = "visit" (to: Address, connections: u32, messages: u32, by: Visitor);
    /// exit(3)
    Exit = "exit" (code: u32);
    /// Nothing, for so many milliseconds.
    Dwell = "dwell" (millis: u32);
}
