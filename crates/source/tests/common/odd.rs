//! A web server, or one that an object store's clients take for theirs, that answers as servers, proxies and networks do that users have
//! met: each [`Mode`] is one of their ways. It needs the standard library alone, so that the lab runs it as well.
//!
//! It serves one directory as several sites, which are buckets to those who ask for them, and each of which has a mode of its own.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest line of a request, in bytes.
const LINE_MAX: u64 = 16 << 10;

/// What is in the signed addresses that it sends clients to, and in nothing else.
pub const SIGNATURE: &str = "SECRETSIGNATURE";

/// How a server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// As it is asked to.
    #[default]
    Right,
    /// Sends each request elsewhere for good.
    Moved,
    /// Sends each request to a signed address.
    Signed,
    /// The same for packs alone.
    SignedPacks,
    /// The same, and the signatures have expired.
    SignedExpired,
    /// Answers each request with a page for signing in, and 200.
    Page,
    /// The same for packs alone.
    PagePacks,
    /// The same for packs, and claims that it is the part that was asked for.
    PagePacksPart,
    /// Answers with a page that says that it is overloaded.
    PageBusy,
    /// Says with a page that packs are not there.
    PageNoPacks,
    /// Says with a page that packs are forbidden.
    PageDeniedPacks,
    /// Sends the whole file, now and then, where a part was asked for.
    WholeNow,
    /// The same for the first request of each file.
    WholeFirst,
    /// The same always.
    Whole,
    /// Compresses parts.
    Gzip,
    /// Compresses parts if the client allows it.
    GzipIfAllowed,
    /// Compresses parts and doesn't say so.
    GzipUnsaid,
    /// Compresses whole files.
    GzipWhole,
    /// Cuts every other part off.
    Cut,
    /// Cuts the answer to the first request of each file off.
    CutFirst,
    /// Sends the bytes of another part than it says.
    WrongPart,
    /// Closes connections without an answer.
    Silent,
}

impl Mode {
    /// All that are wrong.
    pub const ODD: [Mode; 21] = [
        Mode::Moved,
        Mode::Signed,
        Mode::SignedPacks,
        Mode::SignedExpired,
        Mode::Page,
        Mode::PagePacks,
        Mode::PagePacksPart,
        Mode::PageBusy,
        Mode::PageNoPacks,
        Mode::PageDeniedPacks,
        Mode::WholeNow,
        Mode::WholeFirst,
        Mode::Whole,
        Mode::Gzip,
        Mode::GzipIfAllowed,
        Mode::GzipUnsaid,
        Mode::GzipWhole,
        Mode::Cut,
        Mode::CutFirst,
        Mode::WrongPart,
        Mode::Silent,
    ];
}

/// A request that came.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The path, without the query.
    pub path: String,
    /// What is after the `?`.
    pub query: String,
    /// The headers that matter, if they were there.
    pub range: Option<String>,
    pub authorization: Option<String>,
    pub accept_encoding: Option<String>,
}

/// A server of a directory's files. Dropping it ends it.
pub struct OddServer {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    dir: PathBuf,
    /// What paths begin with that is neither a site nor in the directory: an account.
    below: String,
    /// Where requests are sent.
    elsewhere: Option<SocketAddr>,
    sites: Mutex<HashMap<String, Site>>,
    over: AtomicBool,
}

#[derive(Default)]
struct Site {
    mode: Mode,
    asked: Vec<Asked>,
    files_asked: HashSet<String>,
    /// Parts that were asked for in this mode.
    parts: u64,
}

impl Shared {
    fn sites(&self) -> MutexGuard<'_, HashMap<String, Site>> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OddServer {
    /// Serves the files of `dir` under paths that begin with `below` and a site's name; requests are sent on to `elsewhere`.
    pub fn start(dir: &Path, below: &str, elsewhere: Option<&OddServer>) -> io::Result<OddServer> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            below: below.to_owned(),
            elsewhere: elsewhere.map(|server| server.addr),
            sites: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let served = shared.clone();
        std::thread::Builder::new()
            .name("odd-server".into())
            .spawn(move || {
                for tcp in listener.incoming().flatten() {
                    if served.over.load(SeqCst) {
                        return;
                    }
                    let shared = served.clone();
                    std::thread::spawn(move || {
                        // a client that goes away is no matter of the server's
                        let _ = serve(&shared, tcp);
                    });
                }
            })?;
        Ok(OddServer { addr, shared })
    }

    /// Sets how it answers for a site from now on.
    pub fn set(&self, site: &str, mode: Mode) {
        let mut sites = self.shared.sites();
        let site = sites.entry(site.to_owned()).or_default();
        site.mode = mode;
        site.files_asked.clear();
        site.parts = 0;
    }

    /// Returns what it was asked for on a site since the last call.
    pub fn take(&self, site: &str) -> Vec<Asked> {
        let mut sites = self.shared.sites();
        let site = sites.get_mut(site);
        site.map_or_else(Vec::new, |site| std::mem::take(&mut site.asked))
    }
}

impl Drop for OddServer {
    fn drop(&mut self) {
        self.shared.over.store(true, SeqCst);
        // wakes its thread
        let _ = TcpStream::connect(self.addr);
    }
}

/// An answer.
struct Answer {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
    /// Whether half of the body comes and then the end.
    cut: bool,
}

impl Answer {
    fn new(status: u16, body: Vec<u8>) -> Answer {
        Answer {
            status,
            headers: Vec::new(),
            body,
            cut: false,
        }
    }

    fn with(mut self, header: String) -> Answer {
        self.headers.push(header);
        self
    }
}

fn serve(shared: &Shared, tcp: TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut out = tcp.try_clone()?;
    let mut reader = BufReader::new(tcp);
    while let Some((asked, body_bytes)) = read_request(&mut reader)? {
        io::copy(&mut reader.by_ref().take(body_bytes), &mut io::sink())?;
        let Some(answer) = answer(shared, asked) else {
            return out.shutdown(Shutdown::Both);
        };
        let mut head = format!("HTTP/1.1 {} x\r\n", answer.status);
        for header in &answer.headers {
            head += &format!("{header}\r\n");
        }
        // an object store's clients want to know which version of the object they have
        head += "etag: \"1\"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        head += &format!("content-length: {}\r\n\r\n", answer.body.len());
        out.write_all(head.as_bytes())?;
        if answer.cut {
            out.write_all(&answer.body[..answer.body.len() / 2])?;
            return out.shutdown(Shutdown::Both);
        }
        out.write_all(&answer.body)?;
    }
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> io::Result<Option<(Asked, u64)>> {
    let mut line = || -> io::Result<String> {
        let mut line = String::new();
        reader.by_ref().take(LINE_MAX).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    };
    let first = line()?;
    let Some(target) = first.split(' ').nth(1) else {
        return Ok(None);
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut asked = Asked {
        path: path.to_owned(),
        query: query.to_owned(),
        ..Asked::default()
    };
    let mut body_bytes = 0;
    loop {
        let header = line()?;
        if header.is_empty() {
            return Ok(Some((asked, body_bytes)));
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        let value = Some(value.trim().to_owned());
        match name.to_ascii_lowercase().as_str() {
            "range" => asked.range = value,
            "authorization" => asked.authorization = value,
            "accept-encoding" => asked.accept_encoding = value,
            "content-length" => body_bytes = value.and_then(|n| n.parse().ok()).unwrap_or(0),
            _ => {}
        }
    }
}

fn page(status: u16) -> Answer {
    let body = b"<html><body>Welcome! Please sign in.</body></html>".to_vec();
    Answer::new(status, body).with("content-type: text/html".into())
}

/// Answers a request; `None` closes the connection.
fn answer(shared: &Shared, asked: Asked) -> Option<Answer> {
    let is_pack = asked.path.ends_with(".pack");
    let below = asked
        .path
        .strip_prefix(&shared.below)?
        .trim_start_matches('/');
    let (name, file) = below.split_once('/').unwrap_or((below, ""));
    let file = file.to_owned();
    let mut sites = shared.sites();
    let site = sites.entry(name.to_owned()).or_default();
    let mode = site.mode;
    let is_first = site.files_asked.insert(file.clone());
    if asked.range.is_some() {
        site.parts += 1;
    }
    let is_odd_turn = site.parts % 2 == 1;
    site.asked.push(asked.clone());
    drop(sites);
    let to = |query: &str| {
        let server = shared
            .elsewhere
            .unwrap_or(SocketAddr::from(([127, 0, 0, 1], 9)));
        format!("location: http://{server}{}{query}", asked.path)
    };
    let signed = format!("?sig={SIGNATURE}");
    match mode {
        Mode::Silent => return None,
        Mode::Moved => return Some(Answer::new(301, Vec::new()).with(to(""))),
        Mode::Signed => return Some(Answer::new(307, Vec::new()).with(to(&signed))),
        Mode::SignedPacks if is_pack => {
            return Some(Answer::new(307, Vec::new()).with(to(&signed)));
        }
        Mode::SignedExpired => {
            let expired = format!("{signed}&expired=1");
            return Some(Answer::new(302, Vec::new()).with(to(&expired)));
        }
        Mode::Page => return Some(page(200)),
        Mode::PageBusy => return Some(page(503)),
        Mode::PagePacks if is_pack => return Some(page(200)),
        Mode::PagePacksPart if is_pack => return Some(page(206)),
        Mode::PageNoPacks if is_pack => return Some(page(404)),
        Mode::PageDeniedPacks if is_pack => return Some(page(403)),
        _ => {}
    }
    if asked.query.contains("expired=1") {
        return Some(Answer::new(
            403,
            b"<Error><Code>AccessDenied</Code></Error>".to_vec(),
        ));
    }
    let Some(file) = read_file(shared, &file) else {
        return Some(Answer::new(
            404,
            b"<Error><Code>NoSuchKey</Code></Error>".to_vec(),
        ));
    };
    let range = asked
        .range
        .as_deref()
        .and_then(|range| part(range, file.len()));
    let whole = match mode {
        Mode::WholeNow => is_odd_turn,
        Mode::WholeFirst => is_first,
        Mode::Whole => true,
        _ => false,
    };
    let mut answer = match range.filter(|_| !whole) {
        None => Answer::new(200, file),
        Some((start, end)) => {
            let told = format!("content-range: bytes {start}-{end}/{}", file.len());
            let body = match mode {
                Mode::WrongPart => file[..=end - start].to_vec(),
                _ => file[start..=end].to_vec(),
            };
            Answer::new(206, body).with(told)
        }
    };
    let is_part = answer.status == 206;
    let allowed = asked.accept_encoding.as_deref();
    let allows = allowed.is_some_and(|text| text.contains("gzip"));
    let (compress, say) = match mode {
        Mode::Gzip => (is_part, true),
        Mode::GzipIfAllowed => (is_part && allows, true),
        Mode::GzipUnsaid => (is_part, false),
        Mode::GzipWhole => (!is_part, true),
        _ => (false, false),
    };
    if compress {
        answer.body = gzip(&answer.body);
        if say {
            answer = answer.with("content-encoding: gzip".into());
        }
    }
    answer.cut = match mode {
        Mode::Cut => is_part && is_odd_turn,
        Mode::CutFirst => is_first,
        _ => false,
    };
    Some(answer)
}

fn read_file(shared: &Shared, path: &str) -> Option<Vec<u8>> {
    let path = unescaped(path)?;
    let inside = !path.split('/').any(|part| part == "..");
    inside.then(|| std::fs::read(shared.dir.join(path)).ok())?
}

/// Returns a path without its escapes.
fn unescaped(path: &str) -> Option<String> {
    let mut parts = path.split('%');
    let mut out = parts.next()?.as_bytes().to_vec();
    for part in parts {
        out.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        out.extend(part[2..].bytes());
    }
    String::from_utf8(out).ok()
}

/// Reads a range: its first and last byte.
fn part(range: &str, len: usize) -> Option<(usize, usize)> {
    let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
    (start <= end && start < len).then(|| (start, end.min(len - 1)))
}

/// Wraps bytes in gzip's format, in blocks that are stored as they are (RFC 1951, 3.2.4; RFC 1952).
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    for block in bytes.chunks(0xffff) {
        let len = block.len() as u16;
        out.push(0);
        out.extend(len.to_le_bytes());
        out.extend((!len).to_le_bytes());
        out.extend(block);
    }
    out.extend([1, 0, 0, 0xff, 0xff]);
    let crc = !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1))
        })
    });
    out.extend(crc.to_le_bytes());
    out.extend((bytes.len() as u32).to_le_bytes());
    out
}
