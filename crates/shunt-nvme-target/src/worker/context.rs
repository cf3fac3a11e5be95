//! What the connections of a thread have in common.

use std::sync::Arc;

use super::pending::Pending;
use crate::buffers::Buffers;
use crate::metrics::Counts;
use crate::site::{Post, Site};
use crate::store::Mailbox;

/// What connections of a thread share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) site: Arc<Site>,
    pub(super) buffers: Buffers,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) post: Arc<Post>,
    pub(super) pending: Pending,
    pub(super) counts: Arc<Counts>,
}
