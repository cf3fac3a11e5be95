//! Memory, or pipes, that an endpoint has registered.

use std::rc::Rc;

use shunt_wire::agent::Exported;

use crate::held::Held;

/// What an endpoint has registered.
#[derive(Debug)]
pub(crate) struct Export {
    pub(super) what: Exported,
    pub(super) fds: Vec<Rc<Held>>,
}
