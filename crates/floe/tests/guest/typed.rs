//! What is typed at a machine while it stands still, is parked, and its node is killed: `floe type`.

use crate::support::command::{code, ok};
use crate::support::node::{Setup, Signal, TestNode, eventually};
use floe_api::{TypeRequest, TypedInput, UserInput};

/// The end of what a program reads.
const END: &str = "\u{4}";

fn got(node: &TestNode) -> String {
    ok(node, &["exec", "web", "--", "cat", "/www/got"])
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_is_typed_while_a_machine_stands_still_comes_once_and_in_order_when_it_goes_on() {
    let mut node = TestNode::with(Setup {
        args: vec!["--guest-moves".into()],
        ..Default::default()
    });
    node.boot_tiny("web");
    // alone, it can't move, and says so
    let alone = "floe-guest offload 2>&1 | grep -q 'in no cluster' && echo alone-$((3+4))";
    node.type_and_wait("web", alone, "alone-7");
    let cat = "stty -echo; echo reads-$((6*7)); cat > /www/got; stty echo";
    ok(&node, &["type", "web", cat]);
    node.wait_console("web", "reads-42");
    let mut all = String::new();
    let mut types = |node: &TestNode, line: &str| {
        ok(node, &["type", "web", line]);
        all += line;
        all += "\n";
    };
    types(&node, "it runs");
    ok(&node, &["pause", "web"]);
    types(&node, "it is paused");
    node.end(Signal::KILL);
    node.start_again();
    types(&node, "its node was killed");
    eventually("it goes on", || {
        node.client().resume("web").is_ok() // it may not be taken over yet
    });
    types(&node, "it goes on");
    ok(&node, &["park", "web"]);
    types(&node, "it is parked");
    node.end(Signal::KILL);
    node.start_again();
    types(&node, "its node was killed again");
    ok(&node, &["wake", "web"]);
    types(&node, "it was woken");
    eventually("all that was typed is there", || {
        got(&node).len() >= all.len()
    });
    assert_eq!(got(&node), all);

    // what has no answer is sent again, and comes once
    let text = |text: &str| TypedInput {
        gap_ms: 0,
        input: UserInput::Text { text: text.into() },
    };
    let request = TypeRequest {
        from: "00000000000000ab".into(),
        first: 1,
        inputs: vec![text("one\n"), text("two\n")],
    };
    let client = node.client();
    for _ in 0..3 {
        assert_eq!(client.type_on("web", &request).unwrap().kept, 2);
    }
    let gap = TypeRequest {
        first: 4,
        inputs: vec![text("four\n")],
        ..request.clone()
    };
    let error = client.type_on("web", &gap).unwrap_err().to_api();
    assert!(error.message.contains("number 2"), "{error}");
    let more = TypeRequest {
        first: 2,
        inputs: vec![text("two\n"), text("three\n")],
        ..request
    };
    assert_eq!(client.type_on("web", &more).unwrap().kept, 3);
    all += "one\ntwo\nthree\n";
    eventually("the rest is there", || got(&node).len() >= all.len());
    ok(&node, &["type", "-n", "web", END]);
    ok(&node, &["type", "web", "echo shell-$((5+6))"]);
    node.wait_console("web", "shell-11");
    assert_eq!(got(&node), all, "nothing came twice");
    let empty = node.home().join("inputs");
    eventually("nothing of it stays on the disk", || {
        std::fs::read_dir(&empty).unwrap().next().is_none()
    });

    // without an agent it comes by the console's line
    let kill =
        "kill $(pidof floe-guest); while pidof floe-guest; do sleep 1; done; echo gone-$((1+1))";
    node.type_and_wait("web", kill, "gone-2");
    ok(&node, &["type", "web", "echo plain-$((2+3))"]);
    node.wait_console("web", "plain-5");
    // and for no machine at all nothing is kept
    ok(&node, &["rm", "--force", "web"]);
    code(&node, 3, &["type", "web", "nobody"]);
}
