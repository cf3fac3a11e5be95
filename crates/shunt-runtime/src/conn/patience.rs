//! Waits that last long: they begin with a long nap ([`Naps::is_patient`]), as the agent lets a connection see that a program of its
//! link group has gone.
//!
//! [`Naps::is_patient`]: shunt_engine::wait::Naps::is_patient

use core::sync::atomic::Ordering::Relaxed;

use crate::conn::Sock;

impl Sock {
    /// What [`RegionView::gone`] says now; 0: nothing.
    ///
    /// [`RegionView::gone`]: shunt_shm::region::RegionView::gone
    pub fn gone(&self) -> u32 {
        self.link().map_or(0, |link| link.view().gone())
    }

    /// True when waits for it last long, and the kernel has been asked once in one: since then [`Self::gone`] says when to ask
    /// again, as long as the agent lives.
    pub fn is_patient(&self) -> bool {
        self.patience.load(Relaxed) != 0 && self.endpoint().agent().is_some()
    }

    /// A wait has lasted long. The kernel was asked after [`Self::gone`] was `gone`.
    pub fn has_waited_long(&self, gone: u32) {
        self.patience.store(gone, Relaxed);
    }

    /// A wait was short.
    pub fn has_waited_shortly(&self) {
        if self.patience.load(Relaxed) != 0 {
            self.patience.store(0, Relaxed);
        }
    }

    /// True when a program has gone since the kernel was asked: it may have something to tell.
    pub fn is_anybody_gone(&self) -> bool {
        self.gone() != self.patience.load(Relaxed)
    }
}
