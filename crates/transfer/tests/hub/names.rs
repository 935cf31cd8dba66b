//! What names mean, and whose they stay.

use crate::support::*;
use floe_api::{SUBSTRATE_LABEL, VISIBLE_LABEL};

/// What a name means to somebody; `None` if there is none for them.
fn meaning(world: &World, name: &str, token: Option<&str>) -> Option<String> {
    let answer = world.get(&format!("/v1/resolve?name={name}"), token);
    let plain = world.get(&format!("/v1/static/tags/{name}"), token);
    if answer.status == 404 {
        assert_eq!((plain.status, &*answer.code()), (404, "not-found"));
        return None;
    }
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(plain.text().trim(), id, "both ways to ask say the same");
    Some(id)
}

fn send(world: &World, token: &str, parts: &Parts, name: &str, public: bool) -> String {
    let key = world.stage(parts, token);
    let wish = format!("{{\"name\":\"{name}\",\"public\":{public}}}");
    let sent = world.commit(&key, token, &wish);
    assert_eq!(sent.status, 200, "{}", sent.text());
    parts.id().to_string()
}

fn show(world: &World, token: &str, id: &str, public: bool) {
    let wish = format!("{{\"public\":{public}}}");
    let path = format!("/v1/images/{id}/visibility");
    let shown = world.ask("PUT", &path, Some(token), Some(wish.as_bytes()));
    assert_eq!(shown.status, 204, "{}", shown.text());
}

fn tag(world: &World, token: &str, id: &str, name: &str) {
    let wish = format!("{{\"name\":\"{name}\",\"id\":\"{id}\"}}");
    let tagged = world.ask("PUT", "/v1/tags", Some(token), Some(wish.as_bytes()));
    assert_eq!(tagged.status, 204, "{}", tagged.text());
}

#[test]
fn an_image_is_its_owners_own_and_for_everybody_else_somebody_elses() {
    let world = world();
    let image = |number: u64| image_parts(&[number], &[]);
    let named = send(&world, &world.ann, &image(1), "web", true);
    let is_own = |token: Option<&str>, id: &str| {
        let registry = floe_source::Registry::default();
        let hub = registry.open_at(&world.hub.url(), token, None).unwrap();
        hub.is_own(&id.parse().unwrap()).unwrap()
    };
    assert!(is_own(Some(&world.ann), &named));
    assert!(!is_own(Some(&world.bob), &named) && !is_own(None, &named));
    let answer = world.get("/v1/resolve?name=web", Some(&world.ann));
    assert_eq!(answer.json()["own"], true);
    // what is private is own, or is not there
    let private = send(&world, &world.bob, &image(2), "own", false);
    assert!(is_own(Some(&world.bob), &private));
    // the same image of two users is each one's own
    assert_eq!(send(&world, &world.bob, &image(1), "mine", false), named);
    assert!(is_own(Some(&world.bob), &named) && is_own(Some(&world.ann), &named));
}

/// The users' names are in the order of the alphabet and in the opposite one, so that no order by name passes for one by time.
#[test]
fn a_public_name_stays_with_who_published_it_first_until_it_is_withdrawn() {
    for ann_is_first in [true, false] {
        let mut world = world();
        let (mut first, mut second) = (world.ann.clone(), world.bob.clone());
        let mut second_user = "bob";
        if !ann_is_first {
            std::mem::swap(&mut first, &mut second);
            second_user = "ann";
        }
        let image = |number: u64| image_parts(&[number, number + 1], &[]);
        // the second has the name privately before the first publishes it, and publishes it afterwards
        let own = send(&world, &second, &image(1), "nginx", false);
        let old = send(&world, &first, &image(11), "nginx", true);
        show(&world, &second, &own, true);
        for _ in 0..2 {
            assert_eq!(meaning(&world, "nginx", None), Some(old.clone()));
            assert_eq!(meaning(&world, "nginx", Some(&first)), Some(old.clone()));
            assert_eq!(meaning(&world, "nginx", Some(&second)), Some(own.clone()));
            let named = format!("{second_user}/nginx");
            assert_eq!(meaning(&world, &named, None), Some(own.clone()));
            world = world.again(|_| ());
        }
        // nor by pointing it to something else, while the first may point it to a newer image
        let other = send(&world, &second, &image(21), "other", true);
        tag(&world, &second, &other, "nginx");
        assert_eq!(meaning(&world, "nginx", None), Some(old));
        let new = send(&world, &first, &image(31), "nginx", true);
        assert_eq!(meaning(&world, "nginx", None), Some(new.clone()));
        // withdrawn: it is the second's, and stays so when the first wants it back
        show(&world, &first, &new, false);
        assert_eq!(meaning(&world, "nginx", None), Some(other.clone()));
        show(&world, &first, &new, true);
        for _ in 0..2 {
            assert_eq!(meaning(&world, "nginx", None), Some(other.clone()));
            world = world.again(|_| ());
        }
        // withdrawn by pointing it to a private image, by removing the image, and by removing the name
        let hidden = send(&world, &second, &image(41), "hidden", false);
        tag(&world, &second, &hidden, "nginx");
        assert_eq!(meaning(&world, "nginx", None), Some(new.clone()));
        tag(&world, &second, &other, "nginx");
        assert_eq!(meaning(&world, "nginx", None), Some(new.clone()));
        let path = format!("/v1/images/{new}");
        assert_eq!(world.ask("DELETE", &path, Some(&first), None).status, 204);
        assert_eq!(meaning(&world, "nginx", None), Some(other));
        let path = "/v1/tags?name=nginx";
        assert_eq!(world.ask("DELETE", path, Some(&second), None).status, 204);
        assert_eq!(meaning(&world, "nginx", None), None);
    }
}

#[test]
fn nobody_speaks_in_anothers_name_nor_to_readers_that_he_names() {
    let world = world();
    let carol = floe_hub::create_token(&world.hub_dir(), "carol").unwrap();
    let of = |labels: &[(&str, &str)], number: u64| {
        let mut parts = image_parts(&[number], &[]);
        let label = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        parts.manifest.config.labels = labels.iter().map(label).collect();
        parts
    };
    let named = [
        (SUBSTRATE_LABEL, "web"),
        (VISIBLE_LABEL, "restricted carol"),
    ];
    let bobs = send(&world, &world.bob, &of(&named, 1), "web", false);
    assert_eq!(meaning(&world, "web", Some(&carol)), Some(bobs.clone()));
    // a name that begins with another user's is that user's to give
    let fake = send(&world, &world.bob, &of(&[], 2), "ann/web", true);
    assert_eq!(meaning(&world, "ann/web", None), None);
    assert_eq!(meaning(&world, "ann/web", Some(&world.ann)), None);
    assert_eq!(meaning(&world, "bob/ann/web", None), Some(fake));
    // a public name comes before what somebody else shows to this user alone
    let anns = send(&world, &world.ann, &of(&[], 3), "web", true);
    for token in [None, Some(&*carol), Some(&*world.ann)] {
        assert_eq!(meaning(&world, "web", token), Some(anns.clone()));
        assert_eq!(meaning(&world, "ann/web", token), Some(anns.clone()));
    }
    assert_eq!(meaning(&world, "bob/web", Some(&carol)), Some(bobs));
}
