//! What a node does about a hub whose pieces are wrong: it tells the hub, which looks whether they are so on its disk.

use crate::node::{TestNode, eventually};
use crate::support::*;
use floe_api::{SwarmJoin, SwarmSeed};
use floe_transfer::{Cancel, HubClient};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

/// Stands between a hub and a node: gives wrong bytes for each piece, and passes everything else on.
struct Between {
    url: String,
    /// When the hub is told that a pack is wrong: how many wrong pieces were given before.
    told: mpsc::Receiver<usize>,
}

impl Between {
    fn new(hub: SocketAddr) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tells, told) = mpsc::channel();
        let given = Arc::new(AtomicUsize::new(0));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (given, tells) = (given.clone(), tells.clone());
                // whoever asked may be gone by now
                std::thread::spawn(move || answer(client, hub, &given, &tells).is_ok());
            }
        });
        Between { url, told }
    }
}

/// Answers one request, and closes the connection.
fn answer(
    mut client: TcpStream,
    hub: SocketAddr,
    given: &AtomicUsize,
    tells: &mpsc::Sender<usize>,
) -> io::Result<()> {
    let mut asks = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if asks.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.parse::<usize>().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    asks.read_exact(&mut body)?;
    if head.contains("/proven?") {
        given.fetch_add(1, Ordering::SeqCst);
        let wrong = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nwrong";
        return client.write_all(wrong.as_bytes());
    }
    if head.contains("/damaged ") {
        let _ = tells.send(given.load(Ordering::SeqCst)); // the test may be over
    }
    let mut far = TcpStream::connect(hub)?;
    let head = head.trim_end();
    far.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes())?;
    far.write_all(&body)?;
    io::copy(&mut far, &mut client)?;
    Ok(())
}

#[test]
#[ignore = "needs root and FUSE: make test"]
fn a_node_that_gets_wrong_pieces_tells_the_hub_which_finds_its_packs_damaged() {
    let world = world();
    let id = image(&world.repository, &(1..600).collect::<Vec<_>>());
    world.push(&id, "desktop", false).unwrap();
    // once the hub has read the packs for a swarm it does not look at them by itself
    let ann = Some(&*world.ann);
    let hub = HubClient::new(&world.hub.url(), ann, None, &Cancel::default()).unwrap();
    let me = SwarmJoin {
        key: "0b".repeat(32),
        addresses: vec!["127.0.0.1:9".into()],
        content: None,
        layout: None,
        open: false,
    };
    let packs = hub.join_swarm(&id, &me).unwrap().packs;
    hub.leave_swarm(&id, &me.key).unwrap();
    for pack in packs {
        spoil(&world.hub_dir(), &pack.id.parse().unwrap());
    }
    let is_damaged = || world.get("/v1/images", ann).json()["images"][0]["damaged"] == true;
    assert!(!is_damaged());

    let between = Between::new(world.hub.addr());
    let node = TestNode::start();
    let seed = SwarmSeed {
        image: format!("{}/desktop", between.url),
        token: Some(world.ann.clone()),
        ..Default::default()
    };
    node.client().swarm_seed(&seed).unwrap();
    eventually("the hub has looked", is_damaged);
    // one or two may be an accident
    assert!(between.told.recv().unwrap() >= 3);
    let swarms = node.client().swarm().unwrap().swarms;
    assert_eq!((swarms.len(), swarms[0].pieces_here), (1, 0), "{swarms:?}");
    let trouble = &swarms[0].trouble;
    assert!(trouble.contains("the hub sent wrong bytes"), "{trouble}");
}
