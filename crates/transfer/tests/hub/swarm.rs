//! Hosts learn of each other from the hub, and get pieces of it that prove themselves.

use crate::support::*;
use floe_api::{SWARM_ADDRESSES_MAX, SwarmJoin, SwarmMember, SwarmMembership, SwarmOverview};
use floe_hub::Anonymous;
use floe_image::{Hash, Layout};
use floe_peers::{Content, PIECE_BYTES, Pack};
use std::collections::HashSet;
use std::path::PathBuf;

/// A host's key that no other test's host has.
fn key(n: u8) -> String {
    Hash([n; 32]).to_string()
}

fn wish(n: u8) -> SwarmJoin {
    SwarmJoin {
        key: key(n),
        addresses: vec![format!("0.0.0.0:{}", 7000 + u16::from(n))],
        content: None,
        layout: None,
        open: true,
    }
}

/// One that other users are not told of.
fn closed(n: u8) -> SwarmJoin {
    SwarmJoin {
        open: false,
        ..wish(n)
    }
}

fn try_join(world: &World, id: &Hash, token: Option<&str>, wish: &SwarmJoin) -> Answer {
    let body = serde_json::to_vec(wish).unwrap();
    world.ask(
        "POST",
        &format!("/v1/images/{id}/swarm"),
        token,
        Some(&body),
    )
}

fn join(world: &World, id: &Hash, token: Option<&str>, wish: &SwarmJoin) -> SwarmMembership {
    let answer = try_join(world, id, token, wish);
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_slice(&answer.body).unwrap()
}

fn leave(world: &World, id: &Hash, token: Option<&str>, key: &str) -> Answer {
    world.ask(
        "DELETE",
        &format!("/v1/images/{id}/swarm/{key}"),
        token,
        None,
    )
}

fn keys(membership: &SwarmMembership) -> Vec<&str> {
    let members = membership.members.iter();
    members.map(|member| &*member.key).collect()
}

/// The packs of a membership as the hosts of a swarm know them.
fn packs(membership: &SwarmMembership) -> Vec<Pack> {
    let pack = |pack: &floe_api::SwarmPack| Pack {
        root: *pack.root.parse::<Hash>().unwrap().as_bytes(),
        bytes: pack.bytes,
    };
    membership.packs.iter().map(pack).collect()
}

fn proven(world: &World, pack: &str, from: u64, bytes: u64, token: Option<&str>) -> Answer {
    let path = format!("/v1/packs/{pack}/proven?from={from}&bytes={bytes}");
    world.get(&path, token)
}

fn tree_files(world: &World) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(world.hub_dir().join("trees")).unwrap();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().path()).collect()
}

fn some_image(world: &World, public: bool) -> Hash {
    let id = image(&world.repository, &(1..600).collect::<Vec<_>>());
    world.push(&id, "desktop", public).unwrap();
    id
}

#[test]
fn readers_of_an_image_learn_of_each_other_and_strangers_of_nothing() {
    let world = world();
    let id = some_image(&world, true);
    let (ann, bob) = (Some(&*world.ann), Some(&*world.bob));
    let first = join(&world, &id, ann, &wish(1));
    let second = join(&world, &id, bob, &wish(2));
    let third = join(&world, &id, None, &wish(3));
    assert_eq!(keys(&second), [key(1), key(2)]);
    assert_eq!(keys(&third), [key(1), key(2), key(3)]);
    assert_eq!(third.members[1].addresses, ["127.0.0.1:7002"]);
    assert_eq!(
        (&first.token, &first.content),
        (&third.token, &third.content)
    );
    assert_eq!((third.ask_again_ms, third.expires_after_s), (1000, 45));
    // the packs are those of the layout, and make the content that the hosts will name
    let layout = world.get(&format!("/v1/images/{id}/layout"), ann);
    let layout = Layout::decode(&layout.body).unwrap();
    let ids: Vec<String> = layout
        .packs
        .iter()
        .map(|pack| pack.id.to_string())
        .collect();
    assert!(first.packs.iter().map(|pack| &pack.id).eq(&ids) && ids.len() > 2);
    let content = Content::new(packs(&first)).unwrap();
    assert_eq!(first.content, Hash(content.id()).to_string());
    // who knows them is not told again
    let again = SwarmJoin {
        content: Some(first.content.clone()),
        ..wish(1)
    };
    assert!(join(&world, &id, ann, &again).packs.is_empty());
    // who leaves is off the list at once, and only by itself
    assert_eq!(leave(&world, &id, bob, &key(1)).code(), "key-taken");
    assert_eq!(leave(&world, &id, None, &key(1)).status, 409);
    assert_eq!(leave(&world, &id, ann, &key(1)).status, 204);
    assert_eq!(leave(&world, &id, ann, &key(1)).status, 204);
    assert_eq!(keys(&join(&world, &id, bob, &wish(2))), [key(2), key(3)]);
    // a key is its user's
    assert_eq!(try_join(&world, &id, ann, &wish(2)).code(), "key-taken");

    let secret = image(&world.repository, &(900..1000).collect::<Vec<_>>());
    world.push(&secret, "secret", false).unwrap();
    join(&world, &secret, ann, &wish(1));
    for viewer in [None, bob] {
        let refused = try_join(&world, &secret, viewer, &wish(4));
        assert_eq!((refused.status, refused.code()), (404, "not-found".into()));
        assert_eq!(leave(&world, &secret, viewer, &key(1)).status, 404);
        let nothing = try_join(&world, &Hash([9; 32]), viewer, &wish(4));
        let same = refused.text().replace(&secret.to_string(), "ID");
        assert_eq!(
            same,
            nothing.text().replace(&Hash([9; 32]).to_string(), "ID")
        );
    }
}

#[test]
fn users_nodes_are_told_to_other_users_only_if_both_want_that() {
    let world = world();
    let id = some_image(&world, true);
    let (ann, bob) = (Some(&*world.ann), Some(&*world.bob));
    join(&world, &id, ann, &closed(1));
    join(&world, &id, bob, &wish(2));
    // what a node says that leaves it out is what one says that does not want it
    let text = serde_json::to_string(&closed(3)).unwrap();
    assert!(!text.contains("open"), "{text}");
    assert_eq!(keys(&join(&world, &id, ann, &closed(3))), [key(1), key(3)]);
    assert_eq!(keys(&join(&world, &id, bob, &wish(2))), [key(2)]);
    assert!(keys(&join(&world, &id, None, &closed(4))).is_empty());
    // by itself a node meets its own user's, and others once its user says so
    assert_eq!(
        keys(&join(&world, &id, ann, &wish(1))),
        [key(1), key(2), key(3)]
    );
    assert_eq!(keys(&join(&world, &id, bob, &wish(2))), [key(1), key(2)]);
    assert_eq!(keys(&join(&world, &id, ann, &closed(1))), [key(1), key(3)]);
    assert_eq!(keys(&join(&world, &id, bob, &wish(2))), [key(2)]);
}

#[test]
fn its_owner_sees_who_takes_part_in_a_swarm_and_what_the_hub_gave_and_nobody_else_does() {
    let world = world();
    let id = some_image(&world, true);
    let (ann, bob) = (Some(&*world.ann), Some(&*world.bob));
    let path = format!("/v1/images/{id}/swarm");
    let seen = || -> SwarmOverview {
        let answer = world.get(&path, ann);
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    };
    let keys = |list: &[SwarmMember]| -> Vec<String> {
        list.iter().map(|member| member.key.clone()).collect()
    };
    assert_eq!((seen().count, seen().hub_bytes), (0, 0));
    let membership = join(&world, &id, ann, &closed(1));
    join(&world, &id, bob, &wish(2));
    join(&world, &id, bob, &closed(3));
    join(&world, &id, None, &wish(4));
    join(&world, &id, None, &closed(5));
    // that a node runs an image is told to its owner if the node's user lets others know
    let now = seen();
    assert_eq!(keys(&now.own), [key(1)]);
    assert_eq!(keys(&now.others), [key(2), key(4)]);
    assert_eq!(now.others[0].addresses, ["127.0.0.1:7002"]);
    assert_eq!(now.count, 3);
    assert_eq!(world.get(&path, bob).code(), "not-yours");
    assert_eq!(world.get(&path, None).status, 401);

    // what the hub gave counts for the copy that was read
    let pack = &membership.packs[0].id;
    let give = |image: &str, token: Option<&str>| {
        let path = format!("/v1/packs/{pack}/proven?from=0&bytes={PIECE_BYTES}&image={image}");
        world.get(&path, token)
    };
    let first = give(&id.to_string(), bob);
    assert_eq!(first.status, 200, "{}", first.text());
    assert_eq!(seen().hub_bytes, first.body.len() as u64);
    assert_eq!(proven(&world, pack, 0, PIECE_BYTES, None).status, 200);
    assert_eq!(give(&key(9), ann).status, 200);
    assert_eq!(give("nothing", ann).code(), "bad-request");
    assert_eq!(give(&id.to_string(), None).status, 200);
    assert_eq!(seen().hub_bytes, 2 * first.body.len() as u64);

    // with their right to read it others go off the list
    let hide = format!("/v1/images/{id}/visibility");
    let hidden = world.ask("PUT", &hide, ann, Some(b"{\"public\":false}"));
    assert_eq!(hidden.status, 204, "{}", hidden.text());
    let now = seen();
    assert_eq!((keys(&now.own), now.others), (vec![key(1)], vec![]));
    assert_eq!(world.get(&path, bob).status, 404);
    assert_eq!(world.get("/v1/images/none/swarm", ann).status, 404);
}

#[test]
fn a_hub_that_wants_a_token_tells_strangers_nothing_of_swarms() {
    let world = world_with(|options| options.anonymous = Anonymous::Denied);
    let id = some_image(&world, true);
    assert_eq!(try_join(&world, &id, None, &wish(1)).status, 401);
    let membership = join(&world, &id, Some(&world.bob), &wish(1));
    let pack = &membership.packs[0].id;
    assert_eq!(proven(&world, pack, 0, PIECE_BYTES, None).status, 401);
}

#[test]
fn who_may_read_no_longer_is_off_the_list_and_the_token_is_another() {
    let world = world();
    let id = some_image(&world, true);
    let (ann, bob) = (Some(&*world.ann), Some(&*world.bob));
    let before = join(&world, &id, ann, &wish(1));
    join(&world, &id, bob, &wish(2));
    join(&world, &id, None, &wish(3));
    let show = |public: bool| {
        let body = format!("{{\"public\":{public}}}");
        let path = format!("/v1/images/{id}/visibility");
        let changed = world.ask("PUT", &path, ann, Some(body.as_bytes()));
        assert_eq!(changed.status, 204, "{}", changed.text());
    };
    show(false);
    let private = join(&world, &id, ann, &wish(1));
    assert_eq!(keys(&private), [key(1)]);
    assert_ne!(private.token, before.token);
    for viewer in [bob, None] {
        assert_eq!(try_join(&world, &id, viewer, &wish(2)).status, 404);
    }
    for pack in &before.packs {
        assert_eq!(proven(&world, &pack.id, 0, 1, bob).status, 404);
    }
    // bob has a copy of his own now: that is his business, and ann's is hers
    let options = floe_transfer::PushOptions {
        name: Some("copy".into()),
        public: Some(false),
        ..Default::default()
    };
    floe_transfer::push(
        &world.repository,
        &id,
        &world.hub.url(),
        bob,
        &options,
        &|_| (),
    )
    .unwrap();
    let own = join(&world, &id, bob, &wish(2));
    assert_eq!(keys(&own), [key(2)]);
    assert_eq!(keys(&join(&world, &id, ann, &wish(1))), [key(1)]);
    assert!(own.token != private.token && own.token != before.token);
    // what is public again is everybody's
    show(true);
    let again = join(&world, &id, ann, &wish(1));
    assert!(keys(&again).contains(&&*key(1)) && again.token != private.token);
}

#[test]
fn a_reader_that_an_image_names_no_more_is_off_its_list() {
    let world = world();
    let mut parts = image_parts(&(1..50).collect::<Vec<_>>(), &[]);
    let labels = &mut parts.manifest.config.labels;
    labels.insert(floe_api::SUBSTRATE_LABEL.into(), "web".into());
    labels.insert(floe_api::VISIBLE_LABEL.into(), "restricted bob,eve".into());
    let id = parts.id();
    let upload = world.stage(&parts, &world.ann);
    assert_eq!(world.commit(&upload, &world.ann, "{}").status, 200);
    let eve = floe_hub::create_token(&world.hub_dir(), "eve").unwrap();
    let (ann, bob, eve) = (Some(&*world.ann), Some(&*world.bob), Some(&*eve));
    let before = join(&world, &id, bob, &wish(2));
    assert_eq!(keys(&join(&world, &id, eve, &wish(3))), [key(2), key(3)]);
    assert_eq!(
        keys(&join(&world, &id, ann, &wish(1))),
        [key(1), key(2), key(3)]
    );
    assert_eq!(try_join(&world, &id, None, &wish(4)).status, 404);
    let path = format!("/v1/images/{id}/visibility");
    let changed = world.ask("PUT", &path, ann, Some(b"{\"public\":false}"));
    assert_eq!(changed.status, 204, "{}", changed.text());
    let after = join(&world, &id, ann, &wish(1));
    assert_eq!(
        (keys(&after), after.token != before.token),
        (vec![&*key(1)], true)
    );
    for viewer in [bob, eve] {
        assert_eq!(try_join(&world, &id, viewer, &wish(5)).status, 404);
    }
}

#[test]
fn pieces_of_the_hub_prove_themselves_and_damaged_trees_are_made_anew() {
    let world = world();
    let id = some_image(&world, false);
    let ann = Some(&*world.ann);
    let membership = join(&world, &id, ann, &wish(1));
    let files = tree_files(&world);
    assert_eq!(files.len(), membership.packs.len());
    let check = |number: usize| {
        let (named, pack) = (&membership.packs[number], packs(&membership)[number]);
        let whole = world.get(&format!("/v1/packs/{}", named.id), ann).body;
        assert_eq!(whole.len() as u64, pack.bytes);
        let mut at = 0;
        for step in [1, 2, 16, 1, 1, 1].iter().cycle() {
            let end = (at + step * PIECE_BYTES).min(pack.bytes);
            let answer = proven(&world, &named.id, at, end - at, ann);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let bytes = pack.verify(&(at..end), &answer.body).unwrap();
            assert!(bytes == whole[at as usize..end as usize]);
            at = end;
            if at == pack.bytes {
                return;
            }
        }
    };
    (0..membership.packs.len()).for_each(check);
    // others are told nothing of a pack that is not theirs
    let pack = &membership.packs[0].id;
    for viewer in [None, Some(&*world.bob)] {
        assert_eq!(proven(&world, pack, 0, PIECE_BYTES, viewer).status, 404);
    }
    // each kind of damage: changed, cut off, gone, another pack's
    let whole: Vec<Vec<u8>> = files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    let mut wrong = whole[0].clone();
    wrong.iter_mut().for_each(|byte| *byte ^= 1);
    for damage in [
        Some(&wrong),
        Some(&whole[0][..10].to_vec()),
        None,
        Some(&whole[1]),
    ] {
        match damage {
            Some(damage) => std::fs::write(&files[0], damage).unwrap(),
            None => std::fs::remove_file(&files[0]).unwrap(),
        }
        (0..membership.packs.len()).for_each(check);
        assert!(std::fs::read(&files[0]).unwrap() == whole[0]);
    }
}

#[test]
fn a_layout_names_the_roots_of_its_packs_once_a_swarm_has_asked_for_them() {
    let world = world();
    let id = some_image(&world, false);
    let ann = Some(&*world.ann);
    let roots = || {
        let layout = world.get(&format!("/v1/images/{id}/layout"), ann).body;
        let packs = Layout::decode(&layout).unwrap().packs.into_iter();
        let roots = packs.map(|pack| pack.root.map(|root| root.to_string()));
        roots.collect::<Vec<_>>()
    };
    assert!(roots().iter().all(Option::is_none));
    let membership = join(&world, &id, ann, &wish(1));
    let named = membership.packs.into_iter().map(|pack| Some(pack.root));
    assert_eq!(roots(), named.collect::<Vec<_>>());
}

/// The image of [`some_image`] in other packs, as far as its pages are touched by nobody.
fn laid_out_anew(world: &World, id: &Hash) -> Parts {
    let touched = (1..600).step_by(97).map(|n| Hash::of(&page(n)));
    let clusters = [touched.collect::<Vec<_>>()];
    let repository = &world.repository;
    let ready = repository.rearrange(id, &clusters, &mut |_, _| true);
    ready.unwrap().publish().unwrap();
    let packs = repository.layout(id).unwrap().packs.into_iter();
    let packs = packs.map(|pack| {
        let bytes = std::fs::read(repository.pack_path(&pack.id)).unwrap();
        (pack, bytes)
    });
    let parts = Parts {
        packs: packs.collect(),
        ..image_parts(&(1..600).collect::<Vec<_>>(), &[])
    };
    assert_eq!(parts.id(), *id);
    parts
}

#[test]
fn a_layout_that_was_replaced_is_given_until_nobody_uses_it() {
    let world = world();
    let id = some_image(&world, false);
    let ann = Some(&*world.ann);
    let before = join(&world, &id, ann, &wish(1));
    join(&world, &id, ann, &wish(2));
    let anew = laid_out_anew(&world, &id);
    let upload = world.stage(&anew, &world.ann);
    let done = world.commit(&upload, &world.ann, "{}");
    assert_eq!(done.status, 200, "{}", done.text());
    let present: HashSet<String> = anew
        .packs
        .iter()
        .map(|(pack, _)| pack.id.to_string())
        .collect();
    let ids = |membership: &SwarmMembership| -> Vec<String> {
        let packs = membership.packs.iter();
        packs.map(|pack| pack.id.clone()).collect()
    };
    let old = before.packs.iter();
    let old: Vec<_> = old.filter(|pack| !present.contains(&pack.id)).collect();
    assert!(!old.is_empty());
    let given = |viewer| {
        let pieces = old.iter().map(|pack| {
            let bytes = pack.bytes.min(PIECE_BYTES);
            proven(&world, &pack.id, 0, bytes, viewer).status
        });
        pieces.collect::<HashSet<u16>>()
    };
    let knows = |n: u8, content: &str, layout: Option<&str>| SwarmJoin {
        content: Some(content.into()),
        layout: layout.map(Into::into),
        ..wish(n)
    };
    // who knew the old layout and who comes now are told of both, and of each other
    let both = join(&world, &id, ann, &knows(1, &before.content, None));
    assert_eq!(ids(&both)[..before.packs.len()], ids(&before));
    let mut all = present.clone();
    all.extend(ids(&before));
    assert_eq!(ids(&both).into_iter().collect::<HashSet<_>>(), all);
    let content = Content::new(packs(&both)).unwrap();
    assert_eq!(both.content, Hash(content.id()).to_string());
    let late = join(&world, &id, ann, &wish(3));
    assert_eq!((&late.content, &late.token), (&both.content, &before.token));
    assert_eq!(keys(&late), [key(1), key(2), key(3)]);
    assert_eq!(given(ann), HashSet::from([200]));
    for viewer in [None, Some(&*world.bob)] {
        assert_eq!(given(viewer), HashSet::from([404]));
    }
    // for as long as one of them reads by it
    let reads = knows(1, &both.content, Some(&before.content));
    assert!(join(&world, &id, ann, &reads).packs.is_empty());
    let done = knows(2, &both.content, None);
    assert!(join(&world, &id, ann, &done).packs.is_empty());
    assert_eq!(given(ann), HashSet::from([200]));
    assert_eq!(leave(&world, &id, ann, &key(1)).status, 204);
    let after = join(&world, &id, ann, &done);
    assert_eq!(ids(&after).into_iter().collect::<HashSet<_>>(), present);
    assert_eq!(given(ann), HashSet::from([404]));
}

#[test]
fn whoever_doubts_a_pack_has_the_hub_look_and_the_list_says_what_it_found() {
    let world = world();
    let id = some_image(&world, true);
    let (ann, bob) = (Some(&*world.ann), Some(&*world.bob));
    let membership = join(&world, &id, ann, &wish(1));
    let pack = &membership.packs[0].id;
    let doubt = |pack: &str, token: Option<&str>| {
        let path = format!("/v1/packs/{pack}/damaged");
        world.ask("POST", &path, token, Some(b""))
    };
    let listed = || {
        let list = world.get("/v1/images", bob).json();
        list["images"][0]["damaged"] == true
    };
    // nobody's word is enough, and nobody has the hub look again and again
    let lie = doubt(pack, ann);
    assert_eq!((lie.status, &lie.json()["damaged"]), (200, &false.into()));
    assert_eq!(doubt(pack, ann).code(), "busy");
    assert_eq!(doubt(&key(9), bob).status, 404);
    assert_eq!(doubt("nonsense", bob).code(), "not-found");
    assert!(!listed());
    spoil(&world.hub_dir(), &pack.parse().unwrap());
    let right = doubt(pack, bob);
    assert_eq!(
        (right.status, &right.json()["damaged"]),
        (200, &true.into())
    );
    assert!(listed());
    // with a private image's packs strangers have nothing to do
    let secret = image(&world.repository, &(900..1000).collect::<Vec<_>>());
    world.push(&secret, "secret", false).unwrap();
    let private = join(&world, &secret, ann, &wish(1));
    assert_eq!(doubt(&private.packs[0].id, None).status, 404);
    world.push(&id, "desktop", true).unwrap();
    assert!(!listed());
}

#[test]
fn a_hub_that_starts_again_keeps_trees_and_tokens_and_removes_what_is_nobodys() {
    let mut world = world();
    let id = some_image(&world, false);
    let before = join(&world, &id, Some(&world.ann), &wish(1));
    let files = tree_files(&world);
    let when = |file: &PathBuf| std::fs::metadata(file).unwrap().modified().unwrap();
    let made = when(&files[1]);
    let restart = |world: &mut World| {
        let options = options(&world.hub_dir());
        let next = || floe_hub::serve(options).unwrap();
        let old = world.dir.path().join("elsewhere");
        let other = floe_hub::serve(self::options(&old)).unwrap();
        std::mem::replace(&mut world.hub, other).shutdown();
        world.hub = next();
    };
    // damaged while nobody looked, and one of a pack that is not there
    std::fs::write(&files[0], b"nothing").unwrap();
    let foreign = files[1].with_file_name(format!("{}.tree", key(7)));
    std::fs::write(&foreign, b"nothing").unwrap();
    restart(&mut world);
    assert!(!foreign.exists());
    let mut after = join(&world, &id, Some(&world.ann), &wish(1));
    after.ask_again_ms = before.ask_again_ms;
    assert_eq!(after, before);
    assert_eq!(when(&files[1]), made);
    assert_eq!(tree_files(&world).len(), files.len());
    // with its packs go the trees
    let removed = world.ask(
        "DELETE",
        &format!("/v1/images/{id}"),
        Some(&world.ann),
        None,
    );
    assert_eq!(removed.status, 204, "{}", removed.text());
    assert_eq!(tree_files(&world), Vec::<PathBuf>::new());
}

#[test]
fn bad_requests_are_refused_with_what_is_wrong_and_what_to_do() {
    let world = world();
    let id = some_image(&world, true);
    let ann = Some(&*world.ann);
    let membership = join(&world, &id, ann, &wish(1));
    let bad = |wish: SwarmJoin, token: Option<&str>| {
        let answer = try_join(&world, &id, token, &wish);
        assert_eq!((answer.status, answer.code()), (400, "bad-request".into()));
    };
    let at = |text: &str| SwarmJoin {
        addresses: vec![text.into()],
        ..wish(2)
    };
    for text in [
        "",
        "hub:7000",
        "127.0.0.1",
        "127.0.0.1:0",
        "224.0.0.1:7",
        "[ff02::1]:7",
    ] {
        bad(at(text), ann);
    }
    // a user's hosts may have other addresses, a stranger's is where it asks from
    assert_eq!(try_join(&world, &id, ann, &at("192.0.2.1:7")).status, 200);
    bad(at("192.0.2.1:7"), None);
    bad(
        SwarmJoin {
            key: "12".into(),
            ..wish(2)
        },
        ann,
    );
    bad(
        SwarmJoin {
            content: Some("x".repeat(64)),
            ..wish(2)
        },
        ann,
    );
    bad(
        SwarmJoin {
            layout: Some("12".into()),
            ..wish(2)
        },
        ann,
    );
    let many = vec!["0.0.0.0:7".to_owned(); SWARM_ADDRESSES_MAX + 1];
    bad(
        SwarmJoin {
            addresses: many,
            ..wish(2)
        },
        ann,
    );
    let path = format!("/v1/images/{id}/swarm");
    for body in [
        "",
        "{}",
        "[]",
        "{\"key\":1,\"addresses\":[]}",
        "{\"key\":\"\",\"addresses\":[],\"more\":1}",
    ] {
        let answer = world.ask("POST", &path, ann, Some(body.as_bytes()));
        assert_eq!(
            (answer.status, answer.code()),
            (400, "bad-request".into()),
            "{body}"
        );
    }
    assert_eq!(leave(&world, &id, ann, "12").code(), "bad-request");

    let pack = &membership.packs[0];
    for (from, bytes, status) in [
        (0, 0, 400),
        (1, PIECE_BYTES, 400),
        (0, 17 * PIECE_BYTES, 400),
        (0, 100, 400),
        (PIECE_BYTES, u64::MAX, 400),
        (pack.bytes.next_multiple_of(PIECE_BYTES), 1, 416),
        (0, 16 * PIECE_BYTES, 416),
        (u64::MAX - u64::MAX % PIECE_BYTES, PIECE_BYTES, 416),
    ] {
        let answer = proven(&world, &pack.id, from, bytes, ann);
        assert_eq!(answer.status, status, "{from} {bytes}: {}", answer.text());
        answer.code();
    }
    for query in [
        "",
        "?from=0",
        "?from=-1&bytes=65536",
        "?from=0&bytes=18446744073709551616",
    ] {
        let answer = world.get(&format!("/v1/packs/{}/proven{query}", pack.id), ann);
        assert_eq!(answer.code(), "bad-request", "{query}");
    }
    assert_eq!(proven(&world, &key(9), 0, PIECE_BYTES, ann).status, 404);
}
