//! A hub's images, listed and removed from the command line: the real program, and no node.

use crate::support::*;
use floe_image::Hash;
use floe_transfer::{HubClient, PushOptions, push};
use std::process::{Command, Output, Stdio};

struct User<'a> {
    world: &'a World,
    token: Option<&'a str>,
}

impl User<'_> {
    /// Runs a command as this user; its exit code is to be this.
    fn floe(&self, code: i32, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command
            .args(args)
            .env("FLOE_HOME", self.world.dir.path().join("home"))
            .env("XDG_CONFIG_HOME", self.world.dir.path().join("config"))
            .env_remove("FLOE_TOKEN")
            .env_remove("FLOE_HUB")
            .stdin(Stdio::null());
        if let Some(token) = self.token {
            command.env("FLOE_TOKEN", token);
            command.env("FLOE_HUB", self.world.hub.url());
        }
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().unwrap();
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        );
        assert_eq!(status.code(), Some(code), "{args:?}: {said}");
        said
    }
}

fn pushed(world: &World, pages: &[u64], name: &str, public: bool) -> Hash {
    let id = image(&world.repository, pages);
    let options = PushOptions {
        name: Some(name.into()),
        public: Some(public),
        ..PushOptions::default()
    };
    let (url, token) = (world.hub.url(), Some(world.ann.as_str()));
    push(&world.repository, &id, &url, token, &options, &|_| ()).unwrap();
    id
}

#[test]
fn a_hubs_images_are_listed_and_removed_by_who_owns_them() {
    let world = world();
    let url = world.hub.url();
    let id = pushed(&world, &[1, 2, 3], "debian:12", false);
    pushed(&world, &[4, 5], "alpine", true);
    let cancel = Default::default();
    let hub = HubClient::new(&url, Some(&world.ann), None, &cancel).unwrap();
    hub.tag("debian:old", &id).unwrap();
    let user = |token| User {
        world: &world,
        token,
    };
    let (ann, bob, nobody) = (user(Some(&*world.ann)), user(Some(&*world.bob)), user(None));
    let listed = ann.floe(0, &["image", "ls", &url]);
    for part in ["debian:12", "debian:old", "alpine", "ann"] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let one = ann.floe(0, &["image", "ls", &format!("{url}/debian"), "--json"]);
    let one: serde_json::Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["images"].as_array().unwrap().len(), 1, "{one}");
    for other in [&bob, &nobody] {
        let listed = other.floe(0, &["image", "ls", &url]);
        assert!(
            listed.contains("alpine") && !listed.contains("debian"),
            "{listed}"
        );
    }

    let at = |name: &str| format!("{url}/{name}");
    // without the right to it, an image is not there, or is not theirs; the way out is named
    let absent = bob.floe(3, &["image", "rm", "--force", &at("debian:12")]);
    assert!(absent.contains("floe login"), "{absent}");
    for other in [&bob, &nobody] {
        let refused = other.floe(5, &["image", "rm", "--force", &at("alpine")]);
        assert!(refused.contains("floe login"), "{refused}");
    }
    ann.floe(2, &["image", "rm", "--force", &url]);
    let asks = ann.floe(2, &["image", "rm", &at("debian:12")]);
    assert!(
        asks.contains("--force") && asks.contains("the name debian:12"),
        "{asks}"
    );
    ann.floe(0, &["image", "rm", "--force", &at("debian:12")]);
    assert_eq!(hub.resolve("debian:old").unwrap(), id);
    let last = ann.floe(0, &["image", "rm", "--force", &at("debian:old")]);
    assert!(last.contains("removed image"), "{last}");
    let left: Vec<_> = hub.images().unwrap().into_iter().map(|i| i.names).collect();
    assert_eq!(left, [["alpine:latest"]]);
}
