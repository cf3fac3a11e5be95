//! Commands to a running target, over a UNIX socket that its user alone can reach.
//!
//! A request is a line such as `shunt-nvme 1 reload`, what belongs to it, and the end of what is sent. The answer is `ok` or
//! `refused`, a line feed, and a text. A thread of its own waits for those who ask, one after the other; the thread
//! that accepts hosts does what they ask for.

mod client;
mod listener;
pub mod report;

use std::path::PathBuf;

pub use client::{AskError, ask};
pub(crate) use listener::Control;

/// Where the target of the service unit is commanded.
pub const USUAL: &str = "/run/shunt-nvme/control.sock";

/// How each request begins: who is meant, and which version of this conversation.
const GREETING: &str = "shunt-nvme 1 ";
/// The longest request, with a configuration.
const MAX_REQUEST: u64 = 17 << 20;

/// What a target is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// That it read its configuration file again.
    Reload,
    /// That it serve what this configuration says, until it reads its file again.
    Apply {
        /// Where the text is from, for mistakes.
        name: PathBuf,
        /// The configuration.
        text: String,
    },
    /// What it serves: a [`report::Report`].
    Show,
}

impl Request {
    /// As it is sent.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Reload => format!("{GREETING}reload\n"),
            Self::Apply { name, text } => {
                // The name is for people: what would end the line is not of use to them.
                let name = name.display().to_string().replace('\n', "?");
                format!("{GREETING}apply {name}\n{text}")
            }
            Self::Show => format!("{GREETING}show\n"),
        }
    }

    /// Reads one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (line, rest) = text.strip_prefix(GREETING)?.split_once('\n')?;
        match (line.split_once(' ').unwrap_or((line, "")), rest) {
            (("reload", ""), "") => Some(Self::Reload),
            (("show", ""), "") => Some(Self::Show),
            (("apply", name), text) if !name.is_empty() => {
                Some(Self::Apply { name: name.into(), text: text.to_owned() })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn requests() {
        let apply = Request::Apply { name: "a b".into(), text: "listen = []\n\n".to_owned() };
        for request in [Request::Reload, Request::Show, apply] {
            assert_eq!(Request::parse(&request.text()), Some(request));
        }
        let odd = Request::Apply { name: "a\nb".into(), text: String::new() };
        assert_eq!(odd.text(), "shunt-nvme 1 apply a?b\n");
        for bad in [
            "",
            "shunt-nvme 2 show\n",
            "shunt-nvme 1 show",
            "shunt-nvme 1 show \nx",
            "shunt-nvme 1 show\nx",
            "shunt-nvme 1 apply\nx",
            "shunt-nvme 1 end\n",
        ] {
            assert_eq!(Request::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_request_and_its_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let nobody = ask(&path, &Request::Show).unwrap_err().to_string();
        assert!(nobody.contains("no target"), "{nobody}");
        let control = Control::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = Control::open(&path).unwrap_err().to_string();
        assert!(second.contains("another target"), "{second}");
        let asks = std::thread::spawn({
            let path = path.clone();
            move || [Request::Reload, Request::Show].map(|request| ask(&path, &request))
        });
        for answer in [Err("a reason".to_owned()), Ok("text\nmore".to_owned())] {
            let asked = loop {
                match control.next() {
                    Some(asked) => break asked,
                    None => std::thread::yield_now(),
                }
            };
            asked.answer(answer);
        }
        let [refused, shown] = asks.join().unwrap();
        assert_eq!(refused.unwrap_err().to_string(), "a reason");
        assert_eq!(shown.unwrap(), "text\nmore");
        drop(control);
        assert!(!path.exists());
        // What a killed target has left is in nobody's way.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(Control::open(&path).is_ok());
    }
}
