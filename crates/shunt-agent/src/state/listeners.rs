//! Listening sockets: their holders, and their tables of proposals.

use std::collections::HashMap;
use std::rc::Rc;

use shunt_shm::table::{self, Table};
use shunt_wire::addr::Addr;
use shunt_wire::agent::{EndpointId, ListenerId, Reply};
use shunt_wire::reason::Reason;

use super::bequest::Bequest;
use super::{Answer, Listener, Name, Outcome, Rejection, State};
use crate::held::{Held, Passed, Socket, Thing};

/// The facts of a listening socket, from the kernel.
struct Facts {
    cookie: u64,
    addr: Addr,
    v6only: bool,
    netns: u64,
}

/// What a passed socket is, if it listens.
fn listening(thing: &Thing) -> Option<Facts> {
    match *thing {
        Thing::Socket(Socket {
            cookie, netns, listens: true, v6only, local: Some(addr), ..
        }) => Some(Facts { cookie, addr, v6only, netns }),
        _ => None,
    }
}

impl State {
    pub(super) fn listen(&mut self, me: EndpointId, passed: &mut Passed) -> Outcome {
        let socket = passed.take().ok_or(Rejection::Misconduct("a Listen without a socket"))?;
        // Having the socket is the proof of the right to serve it.
        let facts = listening(&socket).ok_or(Rejection::Refused(Reason::Unsupported))?;
        let endpoint = self.endpoints.get_mut(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let &Facts { cookie, addr, v6only, netns } = &facts;
        let name = Name { addr, netns, party: endpoint.origin.party, v6only };
        // A worker that has changed its user is found by the socket it inherited; another socket at
        // the same address by its name. A socket can be moved to another address: then it is new.
        let by_cookie = self.by_cookie.get(&cookie).copied();
        let same_place = |id: &ListenerId| {
            self.listeners.get(id).is_some_and(|l| Name { party: name.party, ..l.name } == name)
        };
        let known = by_cookie.filter(same_place).or_else(|| self.by_name.get(&name).copied());
        let listener = match known {
            Some(known) => known,
            None => self.publish(me, name)?,
        };
        let known =
            self.listeners.get_mut(&listener).ok_or(Rejection::Refused(Reason::Internal))?;
        let sockets = known.holders.entry(me).or_default();
        if sockets.len() >= self.limits.sockets_per_listener && !sockets.contains(&cookie) {
            return Err(Rejection::Refused(Reason::Refused));
        }
        sockets.insert(cookie);
        self.by_cookie.insert(cookie, listener);
        let fds = vec![Rc::clone(&known.table_fd)];
        self.is_served(me, listener, cookie);
        // Also one that an earlier agent has known.
        self.answer_marks_at(cookie);
        if let Some(endpoint) = self.endpoints.get_mut(&me) {
            endpoint.holds.insert(listener);
        }
        Ok(Answer { reply: Reply::Listening { listener }, fds })
    }

    fn publish(&mut self, me: EndpointId, name: Name) -> Result<ListenerId, Rejection> {
        let endpoint = self.endpoints.get(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let account = &endpoint.origin.account;
        let is_of_account =
            |id: &EndpointId| self.endpoints.get(id).is_some_and(|e| e.origin.account == *account);
        let of_account = |l: &&Listener| l.holders.keys().any(is_of_account);
        if self.listeners.len() >= self.limits.listeners
            || self.exceeds_share(account, self.limits.listeners, || {
                self.listeners.values().filter(of_account).count()
            })
        {
            return Err(Rejection::Refused(Reason::Refused));
        }
        let table_fd = table::create()?;
        let table = Table::map(&table_fd)?;
        let listener = self.new_id();
        if !self.registries.publish(name.party, &name.listing(listener)) {
            return Err(Rejection::Refused(Reason::NoResources));
        }
        let table_fd = Rc::new(Held::own(table_fd));
        let entry = Listener { name, table, table_fd, holders: HashMap::new() };
        self.listeners.insert(listener, entry);
        self.by_name.insert(name, listener);
        self.listeners_changed = true;
        Ok(listener)
    }

    pub(super) fn unlisten(&mut self, me: EndpointId, listener: ListenerId) -> Outcome {
        let known = self.listeners.get(&listener);
        let sockets =
            known.and_then(|l| l.holders.get(&me)).ok_or(Rejection::Refused(Reason::Refused))?;
        // The request does not say which socket of a group is closed. It does not matter: the group
        // is held until as many are closed as were registered.
        let any = sockets.iter().next().copied();
        self.holder_left(me, listener, any);
        Ok(Answer::bare(Reply::Done))
    }

    /// An endpoint has closed one socket of a listener, or (`None`) is gone with all it held.
    pub(super) fn holder_left(
        &mut self,
        me: EndpointId,
        listener: ListenerId,
        socket: Option<u64>,
    ) {
        let Some(known) = self.listeners.get_mut(&listener) else { return };
        let Some(sockets) = known.holders.get_mut(&me) else { return };
        let closed = match socket {
            Some(cookie) => sockets.take(&cookie).into_iter().collect(),
            None => std::mem::take(sockets),
        };
        if sockets.is_empty() {
            known.holders.remove(&me);
            if let Some(endpoint) = self.endpoints.get_mut(&me) {
                endpoint.holds.remove(&listener);
            }
        }
        for cookie in closed {
            let known = self.listeners.get(&listener);
            let held = known.is_some_and(|l| l.holders.values().any(|of| of.contains(&cookie)));
            if !held && self.by_cookie.get(&cookie) == Some(&listener) {
                self.by_cookie.remove(&cookie);
                self.leave_marks_at(cookie);
            }
        }
        let is_held = |left: &Bequest| {
            let known = self.listeners.get(&left.listener);
            known.and_then(|l| l.holders.get(&left.by)).is_some_and(|of| of.contains(&left.cookie))
        };
        self.bequests.retain(is_held);
        self.drop_unheld(listener);
    }

    fn drop_unheld(&mut self, listener: ListenerId) {
        if self.listeners.get(&listener).is_some_and(|known| known.holders.is_empty())
            && let Some(known) = self.listeners.remove(&listener)
        {
            self.registries.remove(known.name.party, listener);
            self.by_name.remove(&known.name);
            self.listeners_changed = true;
            if let Some(fabric) = &mut self.fabric {
                fabric.withdraw(listener);
            }
        }
    }
}
