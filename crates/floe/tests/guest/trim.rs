//! What a guest deletes comes back to its host.

use crate::support::node::{TestNode, eventually};
use crate::support::park::{machine, refused, succeeds};
use floe_api::RunRequest;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_a_guest_deletes_comes_back_to_the_host() {
    const DELETED: u64 = 16 << 20;
    let node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        no_trim: true,
        ..Default::default()
    });
    node.wait_console("web", "floe-guest ready");
    let inside = |command: &str| succeeds(&node, &["exec", "web", "--", "sh", "-c", command]);
    let takes = || machine(&node, "web").stats.overlay_bytes;
    inside("mke2fs -F /dev/vda && mkdir -p /disk && mount -t ext4 /dev/vda /disk");
    inside("dd if=/dev/urandom of=/disk/big bs=1048576 count=16 && sync");
    eventually("it is on the host's disk", || takes() >= DELETED);
    let full = takes();
    inside("rm /disk/big && sync");
    let said = succeeds(&node, &["disk", "trim", "web"]);
    assert!(said.contains("less on this host"), "{said}");
    eventually("the host has it back", || takes() + DELETED / 2 < full);
    let report = node.client().trim("web").unwrap();
    assert_eq!(report.places, 1, "{report:?}");
    assert!(report.refused.is_empty(), "{report:?}");

    // the node has left it alone from its start on: it does it when somebody asks
    let shown = succeeds(&node, &["ps", "web"]);
    assert!(shown.contains("only when asked"), "{shown}");
    let said = succeeds(&node, &["limit", "web", "--trim", "on"]);
    assert!(!said.contains("by itself"), "{said}");
    assert!(!machine(&node, "web").no_trim);
    let said = succeeds(&node, &["limit", "web", "--trim", "off"]);
    assert!(said.contains("is not asked by itself"), "{said}");
    assert!(machine(&node, "web").no_trim);
    assert_eq!(node.client().trim("web").unwrap().places, 1);

    inside("umount /disk");
    let none = succeeds(&node, &["disk", "trim", "web"]);
    assert!(none.contains("no file system in web"), "{none}");
    succeeds(&node, &["pause", "web"]);
    refused(
        &node,
        &["disk", "trim", "web"],
        &["stands still", "floe ps web"],
    );
}
