//! Honest hosts bring an image to each other.
mod common;

use common::*;
use floe_peers::*;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_host_has_the_next_gets_from_it() {
    let image = Image::new(&[5, 1, 3]);
    let shop = Shop::new(&image);
    let (nodes, members) = nodes(&image, 2).await;
    let first = nodes[0].join(nodes[0].shelf(&[]), Some(&shop), &members[..1]);
    soon(first.need(&image.all())).await.unwrap();
    image.assert_here(first.shelf());
    let status = first.status().await.unwrap();
    assert_eq!((status.pieces_here, status.pieces, shop.given()), (9, 9, 9));
    assert!(status.seed_bytes > image.bytes());
    // there is nobody but the first to ask
    first.members(members.clone(), TOKEN).await.unwrap();
    let second = nodes[1].join(nodes[1].shelf(&[]), None, &members);
    soon(second.need(&[8, 0, 1_000_000])).await.unwrap();
    second.predict(&image.all(), &[]).await.unwrap();
    let status = until(&second, |status| status.pieces_here == 9).await;
    image.assert_here(second.shelf());
    let traffic = status_of(&status, members[0].key).traffic;
    assert!(traffic.received > image.bytes() && traffic.sent == 0);
    until(&first, |status| {
        status_of(status, members[1].key).traffic.sent == traffic.received
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_start_at_once_each_get_all_in_their_own_order() {
    let image = Image::new(&[40, 60]);
    let shop = Shop::new(&image);
    let (nodes, members) = nodes(&image, 8).await;
    let swarms: Vec<Swarm> = nodes
        .iter()
        .map(|node| node.join(node.shelf(&[]), Some(&shop), &members))
        .collect();
    let all = image.all();
    for swarm in &swarms {
        swarm.predict(&all, &[]).await.unwrap();
    }
    for (number, swarm) in swarms.iter().enumerate() {
        // each machine waits for something else
        soon(swarm.need(&all[number * 10..][..20])).await.unwrap();
    }
    for swarm in &swarms {
        let status = until(swarm, |status| status.pieces_here == status.pieces).await;
        image.assert_here(swarm.shelf());
        assert_eq!(status.needed, 0);
        assert_nobody_is_blamed(&status);
    }
    for swarm in swarms {
        swarm.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wanted_comes_before_what_is_predicted_and_hurries_when_needed() {
    let image = Image::new(&[200]);
    let shop = Shop::new(&image);
    let (nodes, members) = nodes(&image, 2).await;
    let alone = nodes[0].join(nodes[0].shelf(&[]), Some(&shop), &members[..1]);
    let last: Vec<PieceId> = (160..200).rev().collect();
    // nothing comes before both are known, however busy the host is
    let shut = shop.gate.write().await;
    alone.predict(&image.all()[..150], &[]).await.unwrap();
    let opens = async {
        until(&alone, |status| status.wanted == last.len()).await;
        drop(shut);
    };
    let (came, ()) = soon(async { tokio::join!(alone.want(&last), opens) }).await;
    came.unwrap();
    assert!(last.iter().all(|piece| alone.shelf().has(*piece)));
    // at its end the window reaches into what is predicted
    let mut before = shop.given.lock().unwrap().clone();
    // what was given since does not count: on a busy host much may be
    before.truncate(1 + before.iter().rposition(|piece| *piece >= 160).unwrap());
    let predicted = before.iter().filter(|piece| **piece < 150).count();
    assert!(predicted < 140, "{predicted} of what was predicted");
    until(&alone, |status| status.pieces_here == 190).await;
    // nobody has what another one wants, until that is needed and given up, or comes
    let other = nodes[1].join(nodes[1].shelf(&[]), None, &members);
    let given_up = tokio::time::timeout(
        std::time::Duration::from_millis(20),
        other.want(&[155, 156]),
    );
    assert!(given_up.await.is_err());
    until(&other, |status| status.wanted == 0).await;
    alone.members(members.clone(), TOKEN).await.unwrap();
    let both = async { tokio::join!(other.want(&[7, 170, 1_000_000]), other.need(&[170])) };
    assert_eq!(soon(both).await, (Ok(()), Ok(())));
    let status = other.status().await.unwrap();
    assert_eq!((status.wanted, status.needed), (0, 0));
    assert!(!other.shelf().has(155) && !other.shelf().has(156));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_copied_comes_after_what_is_predicted() {
    let image = Image::new(&[200]);
    let shop = Shop::new(&image);
    let (nodes, members) = nodes(&image, 1).await;
    let alone = nodes[0].join(nodes[0].shelf(&[]), Some(&shop), &members);
    let copied: Vec<PieceId> = (150..200).collect();
    let shut = shop.gate.write().await;
    alone.predict(&image.all()[..150], &[]).await.unwrap();
    let opens = async {
        until(&alone, |status| status.wanted == copied.len()).await;
        drop(shut);
    };
    let (came, ()) = soon(async { tokio::join!(alone.copy(&copied), opens) }).await;
    came.unwrap();
    until(&alone, |status| status.pieces_here == 200).await;
    image.assert_here(alone.shelf());
    let given = shop.given.lock().unwrap().clone();
    let last = given.iter().rposition(|piece| *piece < 150).unwrap();
    // some in between, of which a busy host has more
    let early = given[..last].iter().filter(|piece| **piece >= 150).count();
    assert!(early < 25, "{early} copies");
    let status = alone.status().await.unwrap();
    // nothing of either is lacking
    assert!(
        alone
            .rarest(vec![0..9, 9..18])
            .await
            .is_ok_and(|next| next < 2)
    );
    assert_eq!(status.wanted, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_token_ends_no_connection_lets_in_who_comes_with_it_and_shows_out_whom_the_list_names_no_more()
 {
    let image = Image::new(&[6]);
    let (nodes, members) = nodes(&image, 4).await;
    let join =
        |n: usize, packs: &[usize]| nodes[n].join(nodes[n].shelf(packs), None, &members[..3]);
    let (full, stays, goes) = (join(0, &[0]), join(1, &[]), join(2, &[]));
    soon(stays.need(&[0])).await.unwrap();
    soon(goes.need(&[0])).await.unwrap();
    let token = [8; 32];
    let readers = [&members[..2], &members[3..]].concat();
    for swarm in [&full, &stays] {
        swarm.members(readers.clone(), token).await.unwrap();
    }
    let options = Options {
        token,
        ..options(image.content.id(), &readers)
    };
    let late = nodes[3].join_as(nodes[3].shelf(&[]), None, options);
    soon(late.need(&image.all())).await.unwrap();
    image.assert_here(late.shelf());
    assert!(late.connected() > 0);
    until(&goes, |status| {
        status.peers.iter().all(|peer| !peer.connected)
    })
    .await;
    soon(stays.need(&image.all())).await.unwrap();
    let status = until(&full, |status| status_of(status, members[1].key).connected).await;
    let mut keys = status.peers.iter().map(|peer| peer.key);
    assert!(status.peers.len() == 2 && keys.all(|key| key != members[2].key));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_all_is_known_and_stays_so_once_it_has_left() {
    let image = Image::new(&[5, 3]);
    let (nodes, members) = nodes(&image, 2).await;
    let join = |n: usize, packs: &[usize]| nodes[n].join(nodes[n].shelf(packs), None, &members);
    let (full, half) = (join(0, &[0, 1]), join(1, &[0]));
    let [full_key, half_key] = [members[0].key, members[1].key];
    let status = until(&full, |status| status_of(status, half_key).pieces == 5).await;
    assert_eq!(status.complete, []);
    let status = until(&half, |status| status_of(status, full_key).pieces == 8).await;
    assert_eq!(status.complete, [full_key]);
    soon(half.need(&image.all())).await.unwrap();
    until(&full, |status| status.complete == [half_key]).await;
    half.leave().await;
    let status = until(&full, |status| status_of(status, half_key).pieces == 0).await;
    assert_eq!(status.complete, [half_key]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_dial_each_other_at_once_understand_each_other() {
    let image = Image::new(&[6, 6]);
    for _ in 0..5 {
        let (nodes, members) = nodes(&image, 2).await;
        let swarms = [0, 1].map(|n| nodes[n].join(nodes[n].shelf(&[n]), None, &members));
        let all = image.all();
        let both = async { tokio::join!(swarms[0].need(&all), swarms[1].need(&all)) };
        assert_eq!(soon(both).await, (Ok(()), Ok(())));
        for swarm in &swarms {
            image.assert_here(swarm.shelf());
            until(swarm, |status| status.peers[0].connected).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_first_addresses_are_dead_is_reached_by_its_last() {
    let image = Image::new(&[4]);
    let (nodes, mut members) = nodes(&image, 2).await;
    // at the first nobody answers, and the second can't be one
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let dead = [silent.local_addr().unwrap(), "127.0.0.1:0".parse().unwrap()];
    members[1].addresses = [&dead[..], &members[1].addresses[..]].concat();
    // only the first can dial
    members[0].addresses.clear();
    let full = nodes[1].join(nodes[1].shelf(&[0]), None, &members);
    let empty = nodes[0].join(nodes[0].shelf(&[]), None, &members);
    soon(empty.need(&image.all())).await.unwrap();
    image.assert_here(empty.shelf());
    until(&full, |status| status.peers[0].connected).await;
    assert!(
        silent.recv(&mut [0; 2048]).is_ok(),
        "the first was not tried"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_piece_that_is_lost_is_not_asked_for_and_comes_again_when_needed() {
    let image = Image::new(&[4]);
    let (nodes, members) = nodes(&image, 2).await;
    let full = nodes[0].join(nodes[0].shelf(&[0]), None, &members);
    let other = nodes[1].join(nodes[1].shelf(&[]), None, &members);
    soon(other.need(&[0, 1])).await.unwrap();
    soon(full.lost(&[1, 2])).await.unwrap();
    assert!(!full.shelf().has(1) && full.shelf().has(0));
    let lacks = full.shelf().read(0, 0..PIECE_BYTES * 2);
    assert!(matches!(lacks, Err(ShelfError::NotHere(1))));
    assert_eq!(full.status().await.unwrap().pieces_here, 2);
    // the second has it now, and the first gets it back from there
    soon(full.need(&[1])).await.unwrap();
    assert!(full.shelf().read(0, 0..PIECE_BYTES * 2).is_ok());
    // nobody has the other one, until somebody brings it
    let shop = Shop::new(&image);
    let third = Node::new(&image, 3).await;
    let list = [&members[..], &[third.member()]].concat();
    full.members(list.clone(), TOKEN).await.unwrap();
    other.members(list.clone(), TOKEN).await.unwrap();
    let third = (third.join(third.shelf(&[]), Some(&shop), &list), third);
    let wants = async { tokio::join!(other.need(&[2]), third.0.need(&[2])) };
    assert_eq!(soon(wants).await, (Ok(()), Ok(())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_earlier_run_has_left_is_passed_on() {
    let image = Image::new(&[4, 2]);
    let shop = Shop::new(&image);
    let (nodes, members) = nodes(&image, 2).await;
    let first = nodes[0].join(nodes[0].shelf(&[]), Some(&shop), &members);
    soon(first.need(&[0, 1, 5])).await.unwrap();
    first.leave().await;
    let again = nodes[0].join(nodes[0].shelf(&[]), None, &members);
    assert_eq!(again.status().await.unwrap().pieces_here, 3);
    let second = nodes[1].join(nodes[1].shelf(&[]), None, &members);
    soon(second.need(&[1, 5, 0])).await.unwrap();
    assert_eq!(shop.given(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_is_not_asked_any_more() {
    let image = Image::new(&[8]);
    let shop = Shop::new(&image);
    let (nodes, members) = nodes(&image, 2).await;
    let leaves = nodes[0].join(nodes[0].shelf(&[0]), None, &members);
    let stays = nodes[1].join(nodes[1].shelf(&[]), Some(&shop), &members);
    until(&stays, |status| status.peers[0].connected).await;
    soon(leaves.leave()).await;
    until(&stays, |status| !status.peers[0].connected).await;
    soon(stays.need(&image.all())).await.unwrap();
    assert_eq!(shop.given(), 8);
    assert!(stays.status().await.unwrap().dropped.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hosts_cap_holds_for_all_of_its_swarms_and_may_be_lifted() {
    let images = [Image::new(&[5]), Image::new(&[4])];
    let (gives, takes) = (
        Node::new(&images[0], 1).await,
        Node::new(&images[0], 2).await,
    );
    let members = [gives.member(), takes.member()];
    gives.host.cap_uploads(Some(0));
    let mut swarms = Vec::new();
    let mut dirs = Vec::new();
    for image in &images {
        let [full, empty] = [gives.host.key(), takes.host.key()].map(|_| {
            let dir = tempfile::tempdir().unwrap();
            let shelf = Shelf::open(dir.path(), image.content.clone()).unwrap();
            dirs.push(dir);
            shelf
        });
        image.put(&full, dirs[dirs.len() - 2].path(), 0);
        let shop = Shop::new(image);
        let full = gives.join(Arc::new(full), None, &members);
        let empty = takes.join(Arc::new(empty), Some(&shop), &members);
        until(&empty, |status| status.peers[0].connected).await;
        swarms.push((full, empty, shop));
    }
    for (full, empty, shop) in &swarms {
        soon(empty.need(&[0, 1])).await.unwrap();
        assert_eq!(shop.given(), 2);
        let status = full.status().await.unwrap();
        assert_eq!(status_of(&status, takes.host.key()).traffic.sent, 0);
        shop.closed
            .store(true, std::sync::atomic::Ordering::Relaxed);
    }
    // one by one, for lack of more at a time, and then all at once
    gives.host.cap_uploads(Some(4 * PIECE_BYTES));
    for (_, empty, _) in &swarms {
        soon(empty.need(&[2])).await.unwrap();
    }
    gives.host.cap_uploads(None);
    for (image, (_, empty, shop)) in images.iter().zip(&swarms) {
        soon(empty.need(&image.all())).await.unwrap();
        image.assert_here(empty.shelf());
        assert_eq!(shop.given(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_once_in_a_swarm_and_calls_end_with_it() {
    let image = Image::new(&[2]);
    let node = Node::new(&image, 1).await;
    let shelf = node.shelf(&[]);
    let swarm = node.join(shelf.clone(), None, &[]);
    let id = image.content.id();
    let twice = node.host.join(shelf.clone(), None, options(id, &[]));
    assert!(matches!(twice, Err(HostError::Twice)));
    assert_eq!(swarm.need(&[]).await, Ok(()));
    let many: Vec<PieceId> = (0..2).collect();
    let waits = tokio::time::timeout(std::time::Duration::from_millis(50), swarm.need(&many));
    assert!(waits.await.is_err());
    assert_eq!(swarm.status().await.unwrap().needed, 2);
    swarm.leave().await;
    let other = Image::new(&[3]);
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Arc::new(Shelf::open(elsewhere.path(), other.content.clone()).unwrap());
    // the door of the one that was left is free again, and others were free all the time
    let both = [shelf, other].map(|shelf| node.join(shelf, None, &[]));
    drop(both);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_layouts_that_share_packs_are_one_swarm() {
    let old = Image::new(&[6, 5, 7]);
    // its pieces have other numbers, and there are others
    let new = old.anew(&[4, 9], &[2, 0]);
    let mut nodes = Vec::new();
    for (number, image) in (1..).zip([&old, &new, &old, &new]) {
        nodes.push(Node::new(image, number).await);
    }
    let all: Vec<Member> = nodes.iter().map(Node::member).collect();
    let join = |n: usize, packs: &[usize], shop: Option<&Arc<Shop>>, members: &[Member]| {
        let options = options(old.content.id(), members);
        nodes[n].join_as(nodes[n].shelf(packs), shop, options)
    };
    let pieces_of = |image: &Image, packs: &[usize]| -> Vec<PieceId> {
        let of = |pack: &usize| {
            let bytes = image.packs[*pack].len() as u64;
            image.content.pieces_of(*pack, 0..bytes)
        };
        packs.iter().flat_map(of).collect()
    };
    let is_here = |swarm: &Swarm, image: &Image, packs: &[usize]| {
        for pack in packs {
            let bytes = image.packs[*pack].len() as u64;
            assert!(swarm.shelf().read(*pack, 0..bytes).unwrap() == image.packs[*pack]);
        }
    };
    // what one has that knows the old layout, the next gets that knows the new one, and from there who knows the old one again
    let first = join(0, &[0, 1, 2], None, &all[..2]);
    let second = join(1, &[], None, &all[..2]);
    soon(second.need(&pieces_of(&new, &[3, 2]))).await.unwrap();
    is_here(&second, &new, &[2, 3]);
    first.leave().await;
    second.members(all[1..].to_vec(), TOKEN).await.unwrap();
    let third = join(2, &[], None, &all[1..]);
    soon(third.need(&pieces_of(&old, &[0, 2]))).await.unwrap();
    is_here(&third, &old, &[0, 2]);
    // who is asked for what it does not know says so, and is not blamed for it
    let shop = Shop::new(&new);
    let fourth = join(3, &[], Some(&shop), &all[1..]);
    soon(fourth.need(&new.all())).await.unwrap();
    new.assert_here(fourth.shelf());
    for swarm in [&second, &third, &fourth] {
        let status = until(swarm, |status| {
            let connected = status.peers.iter().filter(|peer| peer.connected);
            connected.count() == 2
        });
        assert_nobody_is_blamed(&status.await);
    }
}
