//! The node's web page: a TCP port for browsers, with the socket's interface behind the page's guard.

use crate::{Node, rest};
use axum::Router;
use floe_api::paths::Home;
use floe_fork as fork;
use floe_front::{
    Bounds,
    pace::Pace,
    page::{
        assets::{self, Page},
        guard::{Guard, guarded},
        token::Token,
    },
};
use floe_ground::{
    error::{NodeError, failed, usage},
    options::WebOptions,
};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

/// Binds the page's port.
pub(crate) fn listen(web: &WebOptions, home: &Home) -> Result<(TcpListener, Guard), NodeError> {
    let token = match &web.token {
        Some(token) => Token::chosen(token).map_err(|error| {
            let fix = match token.is_empty() {
                true => "it is empty: unset FLOE_WEB_TOKEN, or set it to a token of your choice",
                false => "give another one with FLOE_WEB_TOKEN or --web-token",
            };
            usage(error.to_string(), fix)
        })?,
        None if web.listen.ip().is_loopback() => {
            Token::of_home(home).map_err(|error| failed(error.to_string(), "make it writable"))?
        }
        None => {
            return Err(usage(
                format!("a page on {} is for the whole network", web.listen),
                "set FLOE_WEB_TOKEN to a token of your choice, or listen on 127.0.0.1",
            ));
        }
    };
    let free = SocketAddr::new(web.listen.ip(), 0);
    let listener = match TcpListener::bind(web.listen) {
        Err(error) if web.any_port && error.kind() == io::ErrorKind::AddrInUse => {
            tracing::info!(taken = %web.listen, "the page takes a free port");
            TcpListener::bind(free)
        }
        bound => bound,
    };
    let bound = listener.and_then(|listener| {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    let (listener, address) = bound.map_err(|error| {
        failed(
            format!("the page cannot listen on {}: {error}", web.listen),
            "choose another address with --web ADDRESS:PORT or --web off, or stop what listens there",
        )
    })?;
    Ok((listener, Guard::new(address, token)))
}

/// Most connections in all: of browsers, and of nodes that read what this one forked.
const CONNECTIONS_MAX: usize = 1024;
/// Most connections of one address: a node that reads has some twenty.
const CONNECTIONS_EACH_MAX: usize = 256;
/// How slow a browser or a node may be, see [`Pace`].
const PACE: Pace = Pace {
    bytes_per_s_min: 256,
    stretch: Duration::from_secs(30),
};

/// Serves the port until the runtime ends.
pub(crate) async fn serve(listener: tokio::net::TcpListener, app: Router) {
    let bounds = Bounds {
        connections_max: CONNECTIONS_MAX,
        connections_each_max: CONNECTIONS_EACH_MAX,
        strangers: None,
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(15),
        idle: Duration::from_secs(120),
        pace: PACE,
        drain: Duration::from_secs(1),
    };
    let (_goes_on, stop) = tokio::sync::watch::channel(false);
    floe_front::run(listener, None, app, bounds, stop).await;
}

/// Returns the routes of everything that the port answers.
pub(crate) fn router(node: Arc<Node>, guard: Arc<Guard>) -> Router {
    // what clones on other hosts read has its own token, and is served here only for forks that were requested in clear text
    let forks = fork::router(node.forks.clone(), fork::Way::Clear);
    guarded(guard, assets::router(Page::Node), rest::router(node)).merge(forks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(listen: &str, any_port: bool, token: Option<&str>) -> WebOptions {
        WebOptions {
            listen: listen.parse().unwrap(),
            any_port,
            token: token.map(str::to_owned),
        }
    }

    #[test]
    fn a_page_for_the_network_needs_a_token_of_the_operators_choice() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let error = listen(&web("0.0.0.0:0", false, None), &home).unwrap_err();
        assert!(error.to_api().fix.contains("FLOE_WEB_TOKEN"));
        assert!(listen(&web("0.0.0.0:0", false, Some("short")), &home).is_err());
        listen(&web("0.0.0.0:0", false, Some("0123456789abcdef")), &home).unwrap();
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_holds_no_connection_of_the_page() {
        use std::io::{Read, Write};
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/", axum::routing::get(async || "page"));
        runtime.spawn(serve(listener, app));
        let mut drip = std::net::TcpStream::connect(address).unwrap();
        // more connections than one address may have
        let held: Vec<_> = (0..CONNECTIONS_EACH_MAX + 10)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        let mut other = std::net::TcpStream::connect(address).unwrap();
        other
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        other.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("page"), "{answer}");
        // the oldest connections were closed to make room
        while drip.write_all(b"G").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut newest = held.last().unwrap();
        while newest.write_all(b"G").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_taken_port_is_an_error_only_if_it_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        assert!(listen(&web(&address, false, None), &home).is_err());
        let (other, guard) = listen(&web(&address, true, None), &home).unwrap();
        let port = other.local_addr().unwrap().port();
        assert!(
            guard.url().ends_with(&format!(":{port}/")),
            "{}",
            guard.url()
        );
        assert!(guard.login_url().contains("/login?token="));
    }
}
