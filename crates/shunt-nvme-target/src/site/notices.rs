//! Notices of the rules, on their way to the threads whose connections they concern.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shunt_nvme::subsystem::Notice;

use crate::store::Mailbox;

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a thread finds notices.
#[derive(Debug)]
pub struct Post {
    notices: Mutex<Vec<Notice>>,
    mailbox: Arc<Mailbox>,
}

impl Post {
    /// Takes them.
    pub fn take(&self) -> Vec<Notice> {
        std::mem::take(&mut *locked(&self.notices))
    }
}

/// Those of all threads.
#[derive(Debug, Default)]
pub(super) struct Posts(Mutex<Vec<Arc<Post>>>);

impl Posts {
    /// One for a thread that is woken by its mailbox.
    pub fn register(&self, mailbox: &Arc<Mailbox>) -> Arc<Post> {
        let post = Arc::new(Post { notices: Mutex::default(), mailbox: Arc::clone(mailbox) });
        locked(&self.0).push(Arc::clone(&post));
        post
    }

    /// Tells all threads: which connection is whose, they alone know.
    pub fn tell(&self, notices: &[Notice]) {
        if notices.is_empty() {
            return;
        }
        for post in locked(&self.0).iter() {
            locked(&post.notices).extend_from_slice(notices);
            post.mailbox.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_told_once() {
        let posts = Posts::default();
        let mailboxes = [0, 1].map(|_| Arc::new(Mailbox::new().unwrap()));
        let [one, other] = mailboxes.each_ref().map(|mailbox| posts.register(mailbox));
        let notice = Notice::Ended { cntlid: 7 };
        posts.tell(&[]);
        posts.tell(&[notice]);
        assert_eq!(one.take(), [notice]);
        assert_eq!(one.take(), []);
        posts.tell(&[notice]);
        assert_eq!(other.take(), [notice, notice]);
    }
}
