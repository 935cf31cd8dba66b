//! What another user of the host gets of a node: nothing. A real node with real machines, and threads of this test that become
//! other users and try everything that there is: every file, directory and socket, the mount, and the processes.

use crate::support::other_users::{
    node_with_machines, open_of_process, open_to, processes, status_field,
};
use std::collections::BTreeMap;

/// The user that a process runs as.
fn user_of(pid: u32) -> u32 {
    status_field(pid, "Uid:").unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn the_user_of_a_machine_gets_its_own_files_and_nothing_of_another_machine() {
    let node = node_with_machines();
    let home = node.home().to_owned();
    let qemus: BTreeMap<String, (u32, u32)> = node
        .client()
        .machines()
        .unwrap()
        .machines
        .into_iter()
        .map(|machine| {
            let pid = machine.pid.unwrap();
            (machine.name, (pid, user_of(pid)))
        })
        .collect();
    let (_, user) = qemus["two"];
    assert!(qemus.values().filter(|(_, uid)| *uid == user).count() == 1 && user != 0);
    let shown = home.join("mnt/machines");
    let mine = [shown.join("two"), home.join("machines/two/boot")];
    let own = |can: &str| mine.iter().any(|dir| can.contains(&*dir.to_string_lossy()));
    let can = open_to(user, &home);
    let foreign: Vec<&String> = can.iter().filter(|can| !own(can)).collect();
    assert!(foreign.is_empty(), "{foreign:#?}");
    // it is the machine's own files that are found open, so the others were tried in the right way
    let ram = shown.join("two/ram").display().to_string();
    assert!(
        can.iter()
            .any(|can| can.starts_with("read") && can.contains(&ram)),
        "{can:#?}"
    );
    for (name, (pid, _)) in qemus.iter().filter(|(name, _)| *name != "two") {
        let can = open_of_process(user, *pid);
        assert!(can.is_empty(), "{name}: {}", can.join("\n"));
    }
    let node_pids = processes(&home);
    for (pid, line) in node_pids
        .iter()
        .filter(|(_, line)| !line.contains("qemu-system"))
    {
        let can = open_of_process(user, *pid);
        assert!(can.is_empty(), "{line}: {}", can.join("\n"));
    }
}
