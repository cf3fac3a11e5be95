//! As much of HTTP/1.1 (RFC 9112) as a scraper needs: one request without a body, one answer, the end.

/// The one thing there is.
const PATH: &[u8] = b"/metrics";

/// What prometheus-client writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why there are no metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It is no request.
    Malformed,
    /// There is only `/metrics`.
    NotFound,
    /// There is only GET, and HEAD.
    NotAllowed,
    /// The request is too long.
    TooLong,
    /// Those before have taken all the time there is.
    TooOften,
    /// The server's own fault.
    Failed,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::NotAllowed => "405 Method Not Allowed",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::TooOften => "503 Service Unavailable",
            Self::Failed => "500 Internal Server Error",
        }
    }

    const fn explain(self) -> &'static str {
        match self {
            Self::Malformed => "This is no HTTP/1 request.\n",
            Self::NotFound => "There is only /metrics.\n",
            Self::NotAllowed => "There is only GET.\n",
            Self::TooLong => "The request is too long.\n",
            Self::TooOften => "Metrics are asked for too often: ask again in a second.\n",
            Self::Failed => "The metrics could not be written: please report it.\n",
        }
    }

    const fn field(self) -> &'static str {
        match self {
            Self::NotAllowed => "Allow: GET, HEAD\r\n",
            Self::TooOften => "Retry-After: 1\r\n",
            _ => "",
        }
    }
}

/// What bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// The beginning of a request.
    Incomplete,
    /// The request for metrics.
    Metrics {
        /// And not only for the head of the answer.
        with_body: bool,
    },
    /// Anything else.
    Refused(Status),
}

/// Looks at what a scraper has said so far. Of the fields nothing is needed; they end at an empty line.
#[must_use]
pub fn parse(bytes: &[u8]) -> Parsed {
    let Some(head) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Parsed::Incomplete;
    };
    let line = bytes[..head].split(|b| *b == b'\r').next().unwrap_or_default();
    let mut words = line.split(|b| *b == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Parsed::Refused(Status::Malformed);
    };
    if !matches!(version, b"HTTP/1.0" | b"HTTP/1.1") {
        return Parsed::Refused(Status::Malformed);
    }
    let with_body = match method {
        b"GET" => true,
        b"HEAD" => false,
        _ => return Parsed::Refused(Status::NotAllowed),
    };
    if target.split(|b| *b == b'?').next() == Some(PATH) {
        Parsed::Metrics { with_body }
    } else {
        Parsed::Refused(Status::NotFound)
    }
}

/// The answer with metrics.
#[must_use]
pub fn metrics(text: &str, with_body: bool) -> Vec<u8> {
    let body = if with_body { text } else { "" };
    answer("200 OK", OPEN_METRICS, "", text.len(), body)
}

/// The answer that there are none.
#[must_use]
pub fn refusal(status: Status) -> Vec<u8> {
    let text = status.explain();
    answer(status.line(), "text/plain; charset=utf-8", status.field(), text.len(), text)
}

fn answer(status: &str, kind: &str, field: &str, len: usize, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{field}\
         Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let metrics = |with_body| Parsed::Metrics { with_body };
        let refused = Parsed::Refused;
        for (request, parsed) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", metrics(true)),
            ("GET /metrics?x=y HTTP/1.0\r\n\r\n", metrics(true)),
            ("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\nmore", metrics(false)),
            ("", Parsed::Incomplete),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", Parsed::Incomplete),
            ("GET / HTTP/1.1\r\n\r\n", refused(Status::NotFound)),
            ("GET /metricsx HTTP/1.1\r\n\r\n", refused(Status::NotFound)),
            ("POST /metrics HTTP/1.1\r\n\r\n", refused(Status::NotAllowed)),
            ("GET /metrics HTTP/2.0\r\n\r\n", refused(Status::Malformed)),
            ("GET /metrics\r\n\r\n", refused(Status::Malformed)),
            ("GET /metrics HTTP/1.1 x\r\n\r\n", refused(Status::Malformed)),
            ("\r\n\r\n", refused(Status::Malformed)),
        ] {
            assert_eq!(parse(request.as_bytes()), parsed, "{request:?}");
        }
        for len in 0..=255 {
            let noise: Vec<u8> = (0..len).collect();
            assert_eq!(parse(&noise), Parsed::Incomplete);
        }
    }

    #[test]
    fn the_head_of_an_answer_is_the_same_without_its_body() {
        let whole = metrics("text", true);
        assert!(whole.ends_with(b"\r\n\r\ntext"));
        assert_eq!(metrics("text", false), whole[..whole.len() - 4]);
        let away = String::from_utf8(refusal(Status::TooOften)).unwrap();
        assert!(away.starts_with("HTTP/1.1 503 ") && away.contains("\r\nRetry-After: 1\r\n"));
    }
}
