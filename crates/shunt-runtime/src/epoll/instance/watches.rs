//! The watches of an instance: connections, which are registered at their completion queues, and
//! parked watches.

use core::ptr;
use core::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL};
use shunt_engine::conn::poll::KernelReadiness;
use shunt_engine::events;
use shunt_shm::region::queue_code;
use shunt_shm::sync::store_load_fence;

use crate::conn::{Conn, KERNEL_HINT, Sock};
use crate::control::bells::COMMON;
use crate::control::link::{Link, looks};
use crate::epoll::instance::Instance;
use crate::epoll::state::{Parked, State, Watch, Watched};
use crate::epoll::{Ours, tag};
use crate::system::abi::{c_int, epoll_event};
use crate::system::errno::KeepErrno;
use crate::system::next;

/// Completions, and events of the kernel, that a parked watch may get. Each may have woken the instance's sleeper for nothing.
const PARKED_COMPLETIONS: u8 = 8;

/// Flag in [`Link::watch`]: more than one instance (or descriptor) watches the connection.
pub const SEVERAL: u64 = 1 << 63;

impl Instance {
    /// True for a parked watch, of which there is news: when more comes it is taken out for good.
    pub fn is_only_parked(&self, state: &mut State, watch: usize) -> bool {
        let Some(parked) = state.get(watch).and_then(|w| w.parked.as_mut()) else { return false };
        parked.completions += 1;
        if parked.completions > PARKED_COMPLETIONS {
            self.unpark_for_good(state, watch);
        }
        true
    }

    /// The program takes a shunted connection out. Programs do that often, to add it again for another
    /// event; so the kernel's registration, which only tells of the connection's end, stays where it
    /// is, and neither costs a system call. False when there is no such registration, or when others
    /// look at the kernel's set.
    pub fn park(&self, state: &mut State, index: usize) -> bool {
        if self.nested.load(Ordering::Relaxed) || state.shared {
            return false;
        }
        let Some(watch) = state.get(index).filter(|w| w.conn.is_some() && w.parked.is_none())
        else {
            return false;
        };
        watch.parked = Some(Parked { completions: 0 });
        true
    }

    /// The process is about to fork: the kernel's set will be the child's, too, and what one of them
    /// has parked the other one could not know of.
    pub(in crate::epoll) fn share(&self, state: &mut State) {
        state.shared = true;
        self.shared.store(true, Ordering::Relaxed);
        for index in state.parked() {
            self.unpark_for_good(state, index);
        }
    }

    /// Takes a parked watch out of the kernel's set, too.
    pub(in crate::epoll) fn unpark_for_good(&self, state: &mut State, index: usize) {
        let Some(fd) = state.get(index).map(|w| w.fd) else { return };
        // SAFETY: a deletion reads no event.
        unsafe { next::epoll_ctl(self.raw(), EPOLL_CTL_DEL, fd, ptr::null_mut()) };
        self.forget_watch(state, index);
    }

    /// Packs this instance and a watch for [`Link::watch`].
    fn packed(&self, watch: usize) -> u64 {
        (self.index as u64 + 1) << 32 | watch as u64
    }

    /// Starts to watch a shunted connection from here.
    pub fn register(&self, state: &mut State, index: usize, conn: Conn) {
        let sock = conn.sock();
        let queued = sock.link().is_some_and(|link| self.register_queue(state, index, sock, link));
        let Some(Some(watch)) = state.watches.get_mut(index) else { return };
        watch.conn = Some(Watched { conn, queued, candidate: sock.link().is_none() });
        watch.kernel = KernelReadiness::Nothing;
        if !queued {
            state.direct.push(index);
            if let Some(link) = sock.link() {
                let vector = match link.endpoint.is_inherited() {
                    true if state.hears(link.endpoint) => COMMON,
                    true => link.endpoint.share_vector(),
                    false => self.vector_at(state, link.endpoint),
                };
                self.hear(state, link.endpoint, vector);
                self.hear(state, link.endpoint, COMMON);
            }
        }
        if let Some(link) = sock.link() {
            self.watch_agent(link, conn);
        }
        self.active.fetch_add(1, Ordering::AcqRel);
        if state.shared {
            // The kernel may tell another process.
            state.list(index);
        } else {
            state.list_unless_told(index);
        }
        if self.nested.load(Ordering::Relaxed) {
            self.arm_queues();
            if !queued {
                state.arm(index);
            }
            self.ring_own(state);
        }
    }

    /// Has the kernel tell when the agent is gone that brings what comes from another host.
    fn watch_agent(&self, link: &'static Link, conn: Conn) {
        let Some(lifeline) = link.lifeline() else { return };
        let _keep = KeepErrno::new();
        // Told once. Of a link group whose connections are here already it is known to the kernel (EEXIST).
        let mut event = epoll_event { events: events::ET, u64: tag(Ours::Agent) };
        // SAFETY: the event is valid.
        unsafe { next::epoll_ctl(self.raw(), EPOLL_CTL_ADD, lifeline, &raw mut event) };
        if link.is_known_to_be_cut_off() {
            conn.put(KERNEL_HINT, true);
        }
    }

    fn register_queue(
        &self,
        state: &mut State,
        index: usize,
        sock: &'static Sock,
        link: &'static Link,
    ) -> bool {
        let Some(lane) = link.lane() else { return false };
        let Some((mine, _)) = sock.sections() else { return false };
        let slot = sock.record().slot();
        let id = &sock.record().id;
        let vector = match id.vector.load(Ordering::Relaxed).checked_sub(1) {
            // Another instance watches it, too: its completions come through that one's vector.
            Some(vector) => vector as usize,
            None => self.vector_for(state, link),
        };
        id.vector.store(u32::try_from(vector + 1).unwrap_or(1), Ordering::Relaxed);
        let word = &link.watch[slot];
        if word
            .compare_exchange(0, self.packed(index), Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            word.fetch_or(SEVERAL, Ordering::AcqRel);
        }
        let is_missed = self.sharers.adds(vector, || looks::is_missed(vector));
        self.hear(state, link.endpoint, vector);
        self.hear(state, link.endpoint, COMMON);
        let rings = link.begins(vector, is_missed);
        mine.ctl.queue.store(queue_code(lane, vector), Ordering::Relaxed);
        // SYNC POINT word-arm: the registration before the look at the cursors that follows.
        store_load_fence();
        if rings {
            link.endpoint.bells.ring(vector);
        }
        true
    }

    /// Connections that are looked at by themselves because they were candidates when they were
    /// registered, and have been promoted since, go over to the completion queue.
    pub fn promote_direct(&self, state: &mut State) {
        let mut i = 0;
        while let Some(&index) = state.direct.get(i) {
            i += 1;
            let Some(conn) = state.get(index).and_then(|w| w.conn) else { continue };
            if !conn.is_unregistered() {
                continue;
            }
            i -= 1;
            state.direct.remove(i);
            self.active.fetch_sub(1, Ordering::AcqRel);
            self.register(state, index, conn.conn);
            // The kernel's registration is what it was, so it tells nothing anew.
            state.list(index);
        }
    }

    /// Stops watching.
    pub(super) fn unregister(&self, index: usize, watch: &Watch) {
        if watch.inner.is_some() {
            self.active.fetch_sub(1, Ordering::AcqRel);
            self.sets.fetch_sub(1, Ordering::AcqRel);
        }
        let Some(Watched { conn, queued, .. }) = watch.conn else { return };
        self.active.fetch_sub(1, Ordering::AcqRel);
        // Where a handler has closed it above a call at this lock, it is another connection's by now.
        if !queued || !conn.is_current() {
            return;
        }
        let sock = conn.sock();
        let Some(link) = sock.link() else { return };
        let word = &link.watch[sock.record().slot()];
        // It may be another connection's by now, whose watch is not to be touched.
        let (ok, no) = (Ordering::AcqRel, Ordering::Relaxed);
        if word.compare_exchange(self.packed(index), 0, ok, no).is_ok() {
            if let Some((mine, _)) = sock.sections() {
                mine.ctl.queue.store(0, Ordering::Relaxed);
            }
            sock.record().id.vector.store(0, Ordering::Relaxed);
        }
    }

    /// A descriptor of the connection is closed. Its registration stays as long as the connection
    /// has another one in this process, `other`: the kernel's does, too.
    pub fn descriptor_closed(&self, fd: c_int, other: Option<c_int>, sock: &Sock) {
        let mut state = self.lock();
        let parked = state.find(fd).filter(|index| state.is_parked(*index));
        // The kernel drops its registration with the last descriptor, wherever that is: maybe in a
        // program that got one.
        let held = other.is_some() || sock.record().id.holders.count() > 1 || sock.is_handed_over();
        if let Some(index) = parked.filter(|_| held) {
            self.unpark_for_good(&mut state, index);
        }
        let Some(other) = other else {
            self.forget(&mut state, fd);
            self.forget_orphans(&mut state, sock);
            return;
        };
        let Some(index) = state.by_fd.remove(fd) else { return };
        state.orphans += 1;
        if let Some(watch) = state.get(index) {
            watch.fd = other;
            if let (Some(watched), Some(conn)) = (&mut watch.conn, Conn::named(other)) {
                watched.conn = conn;
            }
        }
    }

    /// Forgets what is left of closed descriptors of a connection, whose handle is about to be given
    /// back.
    pub fn forget_orphans(&self, state: &mut State, sock: &Sock) {
        if state.orphans > 0 {
            let of_sock: Vec<usize> = state.of_sock(sock).collect();
            of_sock.into_iter().for_each(|index| self.forget_watch(state, index));
        }
    }

    /// Forgets a descriptor.
    pub fn forget(&self, state: &mut State, fd: c_int) {
        if let Some(index) = state.find(fd) {
            self.forget_watch(state, index);
        }
    }

    pub(in crate::epoll) fn forget_watch(&self, state: &mut State, index: usize) {
        let Some(watch) = state.watches.get_mut(index).and_then(Option::take) else { return };
        if state.find(watch.fd) == Some(index) {
            state.by_fd.remove(watch.fd);
        } else {
            state.orphans = state.orphans.saturating_sub(1);
        }
        if watch.listed {
            state.ready.retain(|w| *w != index);
        }
        if watch.conn.is_some_and(|c| !c.queued) {
            state.direct.retain(|w| *w != index);
        }
        if watch.inner.is_some() {
            state.sets.retain(|w| *w != index);
        }
        state.free.push(index);
        self.unregister(index, &watch);
    }
}
