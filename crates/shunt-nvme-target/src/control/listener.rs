//! The target's end.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::Mode;

use super::{MAX_REQUEST, Request};

/// How long those who ask may take to do so, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody is accepted when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// The text for those who have asked, or why they are refused.
type Answer = Result<String, String>;

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Asked {
    /// What is asked for.
    pub request: Request,
    to: mpsc::Sender<Answer>,
}

impl Asked {
    /// Answers.
    pub fn answer(self, answer: Answer) {
        // Nobody waits for it any more.
        let _gone = self.to.send(answer);
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    asked: mpsc::Receiver<Asked>,
    bell: Arc<OwnedFd>,
}

impl Control {
    /// Listens at a path. Only to be called while there is no other thread: it changes what new files' modes are.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn open(path: &Path) -> io::Result<Self> {
        let listener = bind(path)?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (tell, asked) = mpsc::channel();
        let ring = Arc::clone(&bell);
        let run = move || {
            for socket in listener.incoming() {
                match socket {
                    Ok(socket) => {
                        // Who goes away meanwhile has no answer.
                        let _gone = serve(socket, &tell, &ring);
                    }
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        };
        std::thread::Builder::new().name("nvme-control".to_owned()).spawn(run)?;
        Ok(Self { path: path.to_owned(), asked, bell })
    }

    /// Readable while there is a request.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next request.
    pub fn next(&self) -> Option<Asked> {
        let mut count = [0; 8];
        // First the bell: what comes after it rings again.
        let _silent = rustix::io::read(&self.bell, &mut count);
        self.asked.try_recv().ok()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let usual = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path).or_else(|e| {
        if e.kind() != io::ErrorKind::AddrInUse {
            return Err(e);
        }
        match UnixStream::connect(path) {
            Ok(_) => Err(io::Error::new(e.kind(), "another target is commanded there")),
            Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            Err(_) => Err(e),
        }
    });
    rustix::process::umask(usual);
    bound
}

/// Hears one request and answers it.
fn serve(mut socket: UnixStream, tell: &mpsc::Sender<Asked>, bell: &OwnedFd) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    (&socket).take(MAX_REQUEST).read_to_string(&mut text)?;
    let answer = match Request::parse(&text) {
        None => Err("the target does not understand the request".to_owned()),
        Some(request) => {
            let (to, answer) = mpsc::channel();
            let _ends = tell.send(Asked { request, to });
            rustix::io::write(bell, &1_u64.to_ne_bytes())?;
            answer.recv().unwrap_or_else(|_| Err("the target ends".to_owned()))
        }
    };
    let (word, text) = match &answer {
        Ok(text) => ("ok", text),
        Err(why) => ("refused", why),
    };
    socket.write_all(format!("{word}\n{text}").as_bytes())
}
