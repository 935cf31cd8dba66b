//! Tests what the client promises, with real sockets: it is never wrong about whether a request may have been sent, it replaces
//! kept connections that the server has closed, a large body can be watched and stopped, an early answer is read, and a proxy is used
//! and named.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use floe_http::{
    Bytes, Connections, Ended, Fault, Limits, Method, Parts, Proxies, Request, Server, StatusCode,
    Switched, Url,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Starts a server that handles each connection with `handle`; returns its URL, and a counter of connections.
fn server(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> (Url, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("http://{}/base/", listener.local_addr().unwrap())).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let handle = Arc::new(handle);
    std::thread::spawn(move || {
        for tcp in listener.incoming().flatten() {
            counted.fetch_add(1, SeqCst);
            let handle = handle.clone();
            std::thread::spawn(move || handle(tcp));
        }
    });
    (url, count)
}

/// Reads a request's head.
fn head(tcp: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if tcp.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

fn get(server: &Server) -> Request<Bytes> {
    server
        .request(Method::GET, "/x?y=z")
        .body(Bytes::new())
        .unwrap()
}

fn limits() -> Limits {
    Limits::within(LIMIT, LIMIT)
}

type Outcome = Result<(Parts, Vec<u8>), Ended<String>>;

fn ask(kept: &Connections, server: &Server) -> Outcome {
    let mut body = Vec::new();
    let parts = kept.exchange(&limits(), &|| Ok(get(server)), None, &mut |_, data| {
        body.extend_from_slice(data);
        Ok(())
    })?;
    Ok((parts, body))
}

#[test]
fn a_kept_connection_that_the_server_closed_is_replaced() {
    let (url, connections) = server(|mut tcp| {
        // Two answers on each connection, then it is closed without notice.
        for _ in 0..2 {
            let Some(head) = head(&mut tcp) else { return };
            assert!(head.starts_with("GET /base/x?y=z HTTP/1.1\r\n"), "{head}");
            tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
                .unwrap();
        }
    });
    let server = Arc::new(Server::new(&url, None).unwrap());
    let kept = Connections::new(server.clone(), 1);
    for _ in 0..6 {
        let (parts, body) = ask(&kept, &server).unwrap();
        assert_eq!((parts.status, &body[..]), (StatusCode::OK, &b"hello"[..]));
    }
    assert_eq!(connections.load(SeqCst), 3);
}

#[test]
fn it_is_known_whether_a_request_may_have_been_sent() {
    let fault = |url: &Url, limits: Limits| -> Fault {
        let server = Server::new(url, None).unwrap();
        let outcome = server.connect(limits.connect).and_then(|mut connection| {
            let asked = connection.exchange::<()>(get(&server), &limits, None, &mut |_, _| Ok(()));
            match asked {
                Ok(_) => panic!("there is no answer"),
                Err(Ended::Fault(fault)) => Err(fault),
                Err(Ended::Caller(())) => unreachable!(),
            }
        });
        let outcome: Result<(), Fault> = outcome;
        outcome.unwrap_err()
    };
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = Url::parse(&format!("http://{}", free.local_addr().unwrap())).unwrap();
    drop(free);
    let refused = fault(&nobody, limits());
    assert!(matches!(refused, Fault::NotAsked(_)) && !refused.was_asked());

    let (url, _) = server(|mut tcp| {
        head(&mut tcp);
    });
    let silent = fault(&url, limits());
    assert!(
        matches!(silent, Fault::NoAnswer(_)) && silent.was_asked(),
        "{silent:?}"
    );

    let (url, _) = server(|mut tcp| {
        head(&mut tcp);
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")
            .unwrap();
    });
    let half = fault(&url, limits());
    assert!(
        matches!(half, Fault::CutOff(_)) && half.was_asked(),
        "{half:?}"
    );

    let (url, _) = server(|mut tcp| {
        head(&mut tcp);
        // Keeps the connection open until the client closes it.
        let _ = tcp.read(&mut [0]);
    });
    let short = Limits::within(Duration::from_millis(300), LIMIT);
    let late = fault(&url, short);
    assert!(matches!(late, Fault::Late { asked: true }), "{late:?}");
}

#[test]
fn a_large_body_is_watched_and_can_be_stopped() {
    let (url, _) = server(|mut tcp| {
        let Some(head) = head(&mut tcp) else { return };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut left: u64 = length.unwrap().trim().parse().unwrap();
        let mut piece = vec![0; 64 << 10];
        while left > 0 {
            match tcp.read(&mut piece) {
                Ok(n) if n > 0 => left -= n as u64,
                _ => return,
            }
        }
        tcp.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    });
    let server = Arc::new(Server::new(&url, None).unwrap());
    let kept = Connections::new(server.clone(), 1);
    let body = Bytes::from(vec![7; 5_000_001]);
    let put = || {
        Ok(server
            .request(Method::PUT, "/x")
            .body(body.clone())
            .unwrap())
    };
    let mut seen = 0;
    let limits = Limits {
        stall: Some(LIMIT),
        answer: Some(LIMIT),
        ..limits()
    };
    let mut count = |bytes| {
        seen += bytes;
        Ok::<(), String>(())
    };
    let parts = kept
        .exchange(&limits, &put, Some(&mut count), &mut |_, _| Ok(()))
        .unwrap();
    assert_eq!((parts.status, seen), (StatusCode::NO_CONTENT, 5_000_001));

    let mut seen = 0;
    let mut stop = |bytes| {
        seen += bytes;
        Err("enough".to_owned())
    };
    let stopped = kept.exchange(&limits, &put, Some(&mut stop), &mut |_, _| Ok(()));
    assert!(matches!(stopped, Err(Ended::Caller(why)) if why == "enough"));
    assert!(seen < 5_000_001, "{seen}");
}

#[test]
fn a_watched_request_without_a_body_leaves_its_connection_to_the_next() {
    let (url, connections) = server(|mut tcp| {
        while head(&mut tcp).is_some() {
            tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
                .unwrap();
        }
    });
    let server = Arc::new(Server::new(&url, None).unwrap());
    let kept = Connections::new(server.clone(), 1);
    let make = || Ok::<_, String>(get(&server));
    for _ in 0..3 {
        let mut sent = |_| Ok(());
        let parts = kept.exchange(&limits(), &make, Some(&mut sent), &mut |_, _| Ok(()));
        assert_eq!(parts.unwrap().status, StatusCode::OK);
    }
    assert_eq!(connections.load(SeqCst), 1);
}

#[test]
fn who_watches_a_request_can_end_the_wait_for_an_answer_that_does_not_come() {
    let (url, _) = server(|mut tcp| {
        head(&mut tcp);
        // Keeps the connection open until the client closes it.
        let _ = tcp.read(&mut [0]);
    });
    let server = Arc::new(Server::new(&url, None).unwrap());
    let kept = Connections::new(server.clone(), 1);
    let mut sent = |_| Err("enough".to_owned());
    let ended = kept.exchange(
        &limits(),
        &|| Ok(get(&server)),
        Some(&mut sent),
        &mut |_, _| Ok(()),
    );
    assert!(matches!(ended, Err(Ended::Caller(why)) if why == "enough"));
}

#[test]
fn an_answer_that_comes_before_the_body_was_sent_is_read() {
    let (url, connections) = server(|mut tcp| {
        head(&mut tcp);
        tcp.write_all(b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 3\r\n\r\nbig")
            .unwrap();
        // Reads what still arrives, so that the client learns of the end only by the answer.
        let _ = std::io::copy(&mut tcp, &mut std::io::sink());
    });
    let server = Arc::new(Server::new(&url, None).unwrap());
    let kept = Connections::new(server.clone(), 1);
    let put = || {
        let body = Bytes::from(vec![7; 64 << 20]);
        Ok::<_, String>(server.request(Method::PUT, "/x").body(body).unwrap())
    };
    for _ in 0..2 {
        let mut body = Vec::new();
        let mut sent = |_| Ok(());
        let parts = kept.exchange(&limits(), &put, Some(&mut sent), &mut |_, data| {
            body.extend_from_slice(data);
            Ok(())
        });
        assert_eq!(parts.unwrap().status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(body, b"big");
    }
    // Half a request was sent on the first connection, so it takes no other.
    assert_eq!(connections.load(SeqCst), 2);
}

#[test]
fn an_answer_can_be_read_piece_by_piece_from_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    // longer than a socket's address has room for
    let deep = dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let socket = deep.join("socket");
    let listener = floe_threads::listen(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        head(&mut stream).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nfirst")
            .unwrap();
        // The next piece is sent once the client has closed its side for writing; otherwise never.
        let _ = stream.shutdown(Shutdown::Write);
    });
    let server = Server::unix(&socket);
    let mut answer = server.connect(LIMIT).unwrap().open(get(&server)).unwrap();
    assert_eq!(answer.head().status, StatusCode::OK);
    let mut all = Vec::new();
    while let Some(piece) = answer.next_piece().unwrap() {
        assert!(!piece.is_empty());
        all.extend_from_slice(&piece);
    }
    assert_eq!(all, b"first");
}

#[test]
fn a_connection_over_tcp_goes_over_to_another_protocol_with_what_has_come_already() {
    let (url, _) = server(|mut tcp| {
        let Some(head) = head(&mut tcp) else { return };
        if head.starts_with("GET /base/silent ") {
            // Keeps the connection open until the client closes it.
            let _ = tcp.read(&mut [0]);
            return;
        }
        let switched = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nfirst ";
        tcp.write_all(switched.as_bytes()).unwrap();
        // all of it: who has said that still hears the answer
        let mut said = Vec::new();
        tcp.read_to_end(&mut said).unwrap();
        tcp.write_all(&said).unwrap();
    });
    let asks = |path: &str, limit: Duration| {
        let server = Server::new(&url, None).unwrap();
        let request = server
            .request(Method::GET, path)
            .header("connection", "upgrade")
            .header("upgrade", "echo")
            .body(Bytes::new())
            .unwrap();
        server.connect(LIMIT).unwrap().switch_within(request, limit)
    };
    let Ok(Switched::Stream(mut stream, before)) = asks("/echo", LIMIT) else {
        panic!("it was not switched");
    };
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"last").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = before.to_vec();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"first last");
    let late = asks("/silent", Duration::from_millis(300)).unwrap_err();
    assert!(matches!(late, Fault::Late { asked: true }), "{late:?}");
}

#[test]
fn a_base_url_without_secrets_and_with_a_host_is_wanted() {
    for bad in ["ftp://h", "http://u:secret@h", "http://h/?x=1", "file:///x"] {
        let error = Server::new(&Url::parse(bad).unwrap(), None).unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }
}

/// A server behind the proxy at `at`, which is given a user and a password.
fn behind(url: &str, at: &Url, tls: Option<Arc<rustls::ClientConfig>>) -> Arc<Server> {
    let mut proxy = at.clone();
    proxy.set_username("ann").unwrap();
    proxy.set_password(Some("geheim")).unwrap();
    let proxies = Proxies::of(|name| (name == "ALL_PROXY").then(|| proxy.to_string()));
    let url = Url::parse(url).unwrap();
    let server = Server::new(&url, tls).unwrap();
    Arc::new(server.through(proxies.before(&url).unwrap()))
}

#[test]
fn a_proxy_passes_on_what_is_asked_over_http() {
    let (at, connections) = server(|mut tcp| {
        for _ in 0..2 {
            let Some(head) = head(&mut tcp) else { return };
            let line = "GET http://hub.example:4500/base/x?y=z HTTP/1.1\r\n";
            let good = head.starts_with(line)
                && head.contains("host: hub.example:4500\r\n")
                && head.contains("proxy-authorization: Basic YW5uOmdlaGVpbQ==\r\n");
            let status = if good { "200 OK" } else { "400 Bad" };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nhi");
            tcp.write_all(answer.as_bytes()).unwrap();
        }
    });
    let server = behind("http://hub.example:4500/base", &at, None);
    let kept = Connections::new(server.clone(), 1);
    for _ in 0..2 {
        let (parts, body) = ask(&kept, &server).unwrap();
        assert_eq!((parts.status, &body[..]), (StatusCode::OK, &b"hi"[..]));
    }
    assert_eq!(connections.load(SeqCst), 1);
}

#[test]
fn a_proxy_is_asked_for_a_connection_to_an_https_server_and_sees_nothing_of_the_request() {
    let certificate = rcgen::generate_simple_self_signed(vec!["hub.example".into()]).unwrap();
    let key = certificate.signing_key.serialize_der().try_into().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    // the proxy and, behind it, the server
    let (at, _) = server(move |mut tcp| {
        let Some(request) = head(&mut tcp) else {
            return;
        };
        let good = request.starts_with("CONNECT hub.example:443 HTTP/1.1\r\n")
            && request.contains("proxy-authorization: Basic YW5uOmdlaGVpbQ==\r\n");
        assert!(good && !request.contains("secret"), "{request}");
        tcp.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            .unwrap();
        let connection = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut tls = rustls::StreamOwned::new(connection, tcp);
        let Some(request) = head(&mut tls) else {
            return;
        };
        let good = request.starts_with("GET /secret/x?y=z HTTP/1.1\r\n")
            && !request.contains("proxy-authorization");
        let status = if good { "200 OK" } else { "400 Bad" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nhi");
        tls.write_all(answer.as_bytes()).unwrap();
        // until the client has closed it
        let _ = tls.read(&mut [0]);
    });
    let mut ca = tempfile::NamedTempFile::new().unwrap();
    ca.write_all(certificate.cert.pem().as_bytes()).unwrap();
    let tls = floe_http::trusting(Some(ca.path())).unwrap();
    let server = behind("https://hub.example/secret", &at, Some(tls));
    let (parts, body) = ask(&Connections::new(server.clone(), 1), &server).unwrap();
    assert_eq!((parts.status, &body[..]), (StatusCode::OK, &b"hi"[..]));
}

#[test]
fn a_proxy_that_is_dead_or_refuses_is_named_without_its_password() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = Url::parse(&format!("http://{}", free.local_addr().unwrap())).unwrap();
    drop(free);
    let refusing = |answer: &'static [u8]| {
        let (at, _) = server(move |mut tcp| {
            head(&mut tcp);
            let _ = tcp.write_all(answer);
        });
        at
    };
    let (forbids, asks, ends) = (
        refusing(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"),
        refusing(b"HTTP/1.1 407 Who\r\ncontent-length: 0\r\n\r\n"),
        refusing(b""),
    );
    for (at, why) in [
        (dead, "does not answer"),
        (forbids, "answered 403"),
        (asks, "wants a user and a password"),
        (ends, "ended the connection"),
    ] {
        let mut ca = tempfile::NamedTempFile::new().unwrap();
        let key = rcgen::generate_simple_self_signed(vec!["hub.example".into()]).unwrap();
        ca.write_all(key.cert.pem().as_bytes()).unwrap();
        let tls = floe_http::trusting(Some(ca.path())).unwrap();
        let server = behind("https://hub.example", &at, Some(tls));
        let fault = server.connect(LIMIT).unwrap_err();
        assert!(!fault.was_asked(), "{fault:?}");
        let (text, port) = (fault.to_string(), at.port().unwrap().to_string());
        assert!(text.contains(why) && text.contains(&port), "{text}");
        assert!(
            text.contains("(ALL_PROXY)") && !text.contains("geheim"),
            "{text}"
        );
    }
}
