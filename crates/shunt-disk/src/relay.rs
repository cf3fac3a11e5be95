//! What passes between a front end and `vhost-user-backend`, as it passes. That crate speaks the protocol but for one message:
//! that the device's configuration has changed (VHOST_USER_BACKEND_CONFIG_CHANGE_MSG), which goes by a channel of its own. So
//! messages are handed on whole, as they are, and the channel is kept where the front end offers one.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname,
    listen, send, socket_with,
};
use vhost::vhost_user::message::{BackendReq, FrontendReq, VhostUserProtocolFeatures};

use crate::message::{Framing, Message};

/// Bytes of a header: request, flags, bytes of what follows, 32 bits each.
const HEADER: usize = 12;
/// The protocol's version, in a header's flags.
const VERSION: u32 = 1;
/// Most bytes behind a header, and most descriptors with a message: those that `vhost` takes.
const MAX_BODY: usize = 0x1000;
const MAX_FDS: usize = 32;
/// A header says how many bytes follow.
const FRAMING: Framing =
    Framing { header: HEADER, size_at: 8, counts_header: false, most: MAX_BODY, fds: MAX_FDS };

/// What the device has to know of what passes.
#[derive(Debug)]
pub enum Heard {
    /// The front end listens here for changes of the configuration.
    Channel(Channel),
    /// A ring begins or ends.
    Ring,
}

/// Where a front end listens.
#[derive(Debug)]
pub struct Channel(UnixStream);

impl Channel {
    /// Has the front end read the configuration again. One that does not listen any more misses that.
    pub fn config_changed(&self) {
        let words = [u32::from(BackendReq::CONFIG_CHANGE_MSG), VERSION, 0];
        let header = words.map(u32::to_ne_bytes);
        let _deaf = send(&self.0, header.as_flattened(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// A socket, and a listener where it is the only one that can have connected.
///
/// # Errors
/// Those of making sockets.
pub fn pair() -> io::Result<(UnixStream, UnixListener)> {
    let socket =
        || socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (near, listener) = (socket()?, socket()?);
    // The kernel finds a name.
    bind(&listener, &SocketAddrUnix::new_unnamed())?;
    // Room for one: where another one has come before, this fails.
    listen(&listener, 0)?;
    rustix::io::ioctl_fionbio(&near, true)?;
    connect(&near, &getsockname(&listener)?)?;
    rustix::io::ioctl_fionbio(&near, false)?;
    Ok((near.into(), listener.into()))
}

/// Hands messages on between a front end and the device, until either is gone.
///
/// # Errors
/// The front end breaks the protocol, or a system call fails.
pub fn pass_on(
    front: &UnixStream,
    device: &UnixStream,
    mut hear: impl FnMut(Heard),
) -> io::Result<()> {
    let mut has_config = false;
    loop {
        let mut polled = [front, device].map(|fd| PollFd::new(fd, PollFlags::IN));
        retry_on_intr(|| poll(&mut polled, None))?;
        let [from_front, from_device] = polled.map(|fd| !fd.revents().is_empty());
        if from_device && !pass_back(device, front)? {
            return Ok(());
        }
        if !from_front {
            continue;
        }
        let Some(message) = Message::receive(front, &FRAMING)? else { return Ok(()) };
        // The device may have ended meanwhile; then it has said why.
        if message.send(device).is_err() {
            return Ok(());
        }
        let request = message.word(0);
        if request == u32::from(FrontendReq::SET_PROTOCOL_FEATURES) {
            let config = VhostUserProtocolFeatures::CONFIG.bits();
            has_config = body(&message).is_some_and(|features| features & config != 0);
        } else if request == u32::from(FrontendReq::SET_BACKEND_REQ_FD) && has_config {
            // The device looks whether there is one, and whether it is such a socket.
            if let Some(fd) = message.fds.into_iter().next() {
                hear(Heard::Channel(Channel(fd.into())));
            }
        } else if request == u32::from(FrontendReq::SET_VRING_ENABLE) {
            hear(Heard::Ring);
        }
    }
}

/// Hands on what the device has said, which has no descriptors; false at its end.
fn pass_back(mut device: &UnixStream, mut front: &UnixStream) -> io::Result<bool> {
    let mut bytes = [0; HEADER + MAX_BODY];
    let len = match device.read(&mut bytes) {
        Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(true),
        read => read?,
    };
    // A front end that is gone is noticed by the next look at it.
    let _gone = front.write_all(&bytes[..len]);
    Ok(len > 0)
}

/// What follows the header, where that is one number.
fn body(message: &Message) -> Option<u64> {
    let bytes = message.bytes.get(HEADER..)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Seek};
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::{JoinHandle, spawn};
    use std::time::Duration;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};

    use super::*;

    /// Numbers of the protocol's.
    const SET_OWNER: u32 = 3;
    const SET_PROTOCOL_FEATURES: u32 = 16;
    const SET_VRING_ENABLE: u32 = 18;
    const SET_BACKEND_REQ_FD: u32 = 21;

    /// A relay between two sockets of the test's.
    struct Passing {
        front: UnixStream,
        device: UnixStream,
        heard: Receiver<Heard>,
        thread: JoinHandle<io::Result<()>>,
    }

    impl Passing {
        fn new() -> Self {
            let (front, near) = UnixStream::pair().unwrap();
            let (device, far) = UnixStream::pair().unwrap();
            device.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let (hear, heard) = channel();
            let thread = spawn(move || pass_on(&near, &far, |said| hear.send(said).unwrap()));
            Self { front, device, heard, thread }
        }

        fn say(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
            let mut space = vec![MaybeUninit::uninit(); 4096];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
            let bytes = [IoSlice::new(bytes)];
            sendmsg(&self.front, &bytes, &mut control, SendFlags::empty()).unwrap();
        }

        /// How it ends once the front end has gone.
        fn ended(self) -> io::Result<()> {
            drop(self.front);
            self.thread.join().unwrap()
        }
    }

    fn message(request: u32, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len()).unwrap();
        let header = [request, VERSION, len].map(u32::to_ne_bytes);
        [header.as_flattened(), body].concat()
    }

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let passing = Passing::new();
        let files = [7, 11, 13].map(|at| {
            let mut file = tempfile::tempfile().unwrap();
            file.seek(io::SeekFrom::Start(at)).unwrap();
            file
        });
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let long = vec![0x5a; MAX_BODY];
        // Two in one piece, of which the second one has descriptors; then one in many.
        let two = [message(SET_OWNER, b""), message(5, b"memory")].concat();
        passing.say(&two[..HEADER], &[]);
        passing.say(&two[HEADER..], &fds[..2]);
        for byte in message(40, b"slowly") {
            passing.say(&[byte], &[]);
        }
        passing.say(&message(41, &long), &fds[2..]);
        for (request, body, places) in [
            (SET_OWNER, &b""[..], &[][..]),
            (5, b"memory", &[7, 11]),
            (40, b"slowly", &[]),
            (41, &long, &[13]),
        ] {
            let came = Message::receive(&passing.device, &FRAMING).unwrap().unwrap();
            assert_eq!((came.word(0), &came.bytes[HEADER..]), (request, body));
            let place = |fd: OwnedFd| std::fs::File::from(fd).stream_position().unwrap();
            assert_eq!(came.fds.into_iter().map(place).collect::<Vec<_>>(), places);
        }
        (&passing.device).write_all(b"any answer").unwrap();
        let mut answer = [0; 10];
        (&passing.front).read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"any answer");
        passing.ended().unwrap();
    }

    #[test]
    fn a_front_end_that_breaks_the_protocol_is_cut_off() {
        let file = tempfile::tempfile().unwrap();
        let fds = [file.as_fd(); MAX_FDS + 1];
        let header = |len: u32| [SET_OWNER, VERSION, len].map(u32::to_ne_bytes).concat();
        for (said, fds, is_fine) in [
            (vec![], 0, true),
            (message(SET_OWNER, b""), MAX_FDS, true),
            (message(SET_OWNER, b""), MAX_FDS + 1, false),
            (header(0)[..11].to_vec(), 0, false),
            (header(1), 0, false),
            (message(SET_OWNER, b"some")[..14].to_vec(), 0, false),
            (header(4097), 0, false),
            (header(u32::MAX), 0, false),
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 0, false),
        ]
        .map(|(said, count, is_fine)| (said, &fds[..count], is_fine))
        {
            let passing = Passing::new();
            if !said.is_empty() {
                passing.say(&said, fds);
            }
            assert_eq!(passing.ended().is_ok(), is_fine, "{said:?} with {} descriptors", fds.len());
        }
    }

    #[test]
    fn the_devices_end_is_the_relays() {
        let passing = Passing::new();
        passing.device.shutdown(std::net::Shutdown::Both).unwrap();
        passing.thread.join().unwrap().unwrap();
    }

    #[test]
    fn a_channel_is_kept_and_never_waited_for() {
        let config = VhostUserProtocolFeatures::CONFIG.bits();
        for (features, listens) in [(config, true), (!config, false)] {
            let passing = Passing::new();
            let (near, far) = UnixStream::pair().unwrap();
            passing.say(&message(SET_PROTOCOL_FEATURES, &features.to_ne_bytes()), &[]);
            passing.say(&message(SET_BACKEND_REQ_FD, b""), &[far.as_fd()]);
            drop(far);
            passing.say(&message(SET_VRING_ENABLE, &[0; 8]), &[]);
            for count in [0, 1, 0] {
                let came = Message::receive(&passing.device, &FRAMING).unwrap().unwrap();
                assert_eq!(came.fds.len(), count);
            }
            let mut heard = passing.heard.recv().unwrap();
            assert_eq!(matches!(heard, Heard::Channel(_)), listens);
            if let Heard::Channel(channel) = heard {
                channel.config_changed();
                let mut said = [0; HEADER];
                (&near).read_exact(&mut said).unwrap();
                // VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, without data, no answer wanted.
                assert_eq!(said.as_chunks().0, [2, 1, 0].map(u32::to_ne_bytes));
                (0..100_000).for_each(|_| channel.config_changed());
                drop(near);
                channel.config_changed();
                heard = passing.heard.recv().unwrap();
            }
            assert!(matches!(heard, Heard::Ring));
            passing.ended().unwrap();
        }
    }

    #[test]
    fn no_other_socket_can_be_in_the_way() {
        let (near, listener) = pair().unwrap();
        let (kind, flags) = (SocketType::STREAM, SocketFlags::NONBLOCK);
        let late = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let full = connect(&late, &getsockname(&listener).unwrap());
        assert_eq!(full, Err(rustix::io::Errno::AGAIN));
        let (far, _) = listener.accept().unwrap();
        (&near).write_all(b"hello").unwrap();
        let mut said = [0; 5];
        (&far).read_exact(&mut said).unwrap();
        assert_eq!(&said, b"hello");
    }
}
