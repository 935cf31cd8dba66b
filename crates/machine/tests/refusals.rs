//! What a restore refuses before the guest could notice, and that each refusal says what to do.

mod common;

use std::time::Duration;

use common::*;
use floe_image::MachineConfig;
use floe_machine::{
    CaptureOptions, End, Incompatible, Machine, MachineError, Snapshot, Spec, Standby, Status,
};

fn refusal(
    spec: &Spec,
    snapshot: &Snapshot,
    change: impl FnOnce(&mut MachineConfig),
) -> MachineError {
    let mut spec = spec.clone();
    change(&mut spec.config);
    let error = Standby::prepare(spec.clone(), snapshot)
        .err()
        .expect("a state that does not fit is refused");
    assert!(
        Machine::adopt(&spec.dir).is_err(),
        "nothing runs after a refusal"
    );
    error
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_state_that_does_not_fit_this_host_is_refused_with_the_way_out() {
    let guest = guest();
    let dir = scratch();
    let original = spec(&guest, dir.path(), "parent", 20);
    // The state of the firmware is enough for this test.
    let parent = Machine::start(original.clone()).unwrap();
    let _parent = Guard(&parent);
    let capture = parent
        .capture(CaptureOptions::default(), || Ok::<_, String>(()))
        .unwrap();
    let spec = clone_spec(&original, &capture, dir.path(), "clone", 21);
    let good = snapshot(&capture, None, &dir.path().join("clone.ram"), spec.user);

    let error = refusal(&spec, &good, |c| c.qemu_version = Some("6.9.1".into()));
    assert!(
        matches!(
            error,
            MachineError::Incompatible(Incompatible::QemuVersion { .. })
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("6.9.1") && error.to_string().contains("install QEMU"),
        "{error}"
    );
    let error = refusal(&spec, &good, |c| {
        c.machine_type = Some("pc-q35-99.0".into())
    });
    assert!(
        error.to_string().contains("pc-q35-99.0") && error.to_string().contains("cold"),
        "{error}"
    );
    let error = refusal(&spec, &good, |c| c.cpu_model = Some("NoSuchModel".into()));
    assert!(
        error.to_string().contains("NoSuchModel") && error.to_string().contains("--cpu"),
        "{error}"
    );
    let error = refusal(&spec, &good, |c| c.cpu_flags.push("avx1024".into()));
    assert!(
        error.to_string().contains("lacks avx1024") && error.to_string().contains("cold"),
        "{error}"
    );
    let error = refusal(&spec, &good, |c| c.accel = Some("xen".into()));
    assert!(
        error.to_string().contains("xen") && error.to_string().contains("cold"),
        "{error}"
    );
    let error = refusal(&spec, &good, |c| {
        c.devices.push("loader,file=/etc/passwd".into())
    });
    assert!(matches!(error, MachineError::Untrusted { .. }), "{error}");
    let error = refusal(&spec, &good, |c| *c = MachineConfig::default());
    assert!(error.to_string().contains("start it cold"), "{error}");

    // Errors that only QEMU can detect, with QEMU's message.
    let error = refusal(&spec, &good, |c| {
        c.devices.retain(|d| !d.starts_with("virtio-balloon"))
    });
    assert!(matches!(error, MachineError::Restore { .. }), "{error}");
    assert!(error.to_string().contains("virtio-balloon"), "{error}");
    let cut = Snapshot {
        device: good.device[..good.device.len() / 2].to_vec(),
        ..good.clone()
    };
    let error = refusal(&spec, &cut, |_| {});
    assert!(matches!(error, MachineError::Restore { .. }), "{error}");
    let garbage = Snapshot {
        device: vec![0x55; 100_000],
        ..good.clone()
    };
    assert!(matches!(
        refusal(&spec, &garbage, |_| {}),
        MachineError::Restore { .. }
    ));
    let missing = Snapshot {
        ram: dir.path().join("nothing here"),
        ..good.clone()
    };
    let error = refusal(&spec, &missing, |_| {});
    assert!(matches!(error, MachineError::Start { .. }), "{error}");
    let far = Snapshot {
        vram: vec![(1 << 20, Box::new([1; 4096]))],
        ..good.clone()
    };
    let error = refusal(&spec, &far, |_| {});
    assert!(error.to_string().contains("beyond"), "{error}");
    // The unchanged state can be restored, so the refusals above had their expected causes.
    drop(Standby::prepare(spec, &good).unwrap());
}

#[test]
fn a_machine_without_qemu_or_wrapper_says_what_is_missing() {
    let dir = scratch();
    let mut spec = Spec::new(
        "none",
        dir.path().join("none"),
        floe_machine::accel::detect(),
        programs(),
    );
    spec.programs.qemu = "/nowhere/qemu".into();
    let error = Machine::start(spec.clone()).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("install the package qemu-system-x86"),
        "{error}"
    );
    spec.name = "../up".into();
    let error = Machine::start(spec.clone()).err().unwrap();
    assert!(matches!(error, MachineError::Spec { .. }), "{error}");
    spec.name = "none".into();
    spec.config.disks = vec!["disk0".into()];
    let error = Machine::start(spec).err().unwrap();
    assert!(error.to_string().contains("0 files are given"), "{error}");
    let error = Machine::adopt(dir.path()).err().unwrap();
    assert!(
        matches!(error, MachineError::NotAdoptable { .. }),
        "{error}"
    );
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_guest_that_resets_or_switches_off_after_a_restore_is_told_apart() {
    let guest = guest();
    let dir = scratch();
    let original = spec(&guest, dir.path(), "parent", 24);
    let (parent, console) = boot(original.clone());
    drop(console);
    let _parent = Guard(&parent);
    let capture = parent
        .capture(CaptureOptions::default(), || Ok::<_, String>(()))
        .unwrap();
    parent.quit(PATIENCE).unwrap();
    assert_eq!(parent.status().unwrap(), Status::Ended(End::Asked));
    for (number, name, command, end) in [
        (25, "resets", "reboot -f", End::GuestReset),
        (26, "leaves", "poweroff -f", End::GuestShutdown),
    ] {
        let spec = clone_spec(&original, &capture, dir.path(), name, number);
        let snapshot = snapshot(
            &capture,
            None,
            &dir.path().join(format!("{name}.ram")),
            spec.user,
        );
        let standby = Standby::prepare(spec, &snapshot).unwrap();
        assert_eq!(standby.machine().status().unwrap(), Status::Paused);
        let clone = standby.activate(&[]).unwrap().machine;
        let _clone = Guard(&clone);
        let mut console = Console::open(&clone);
        console.send(command);
        assert!(clone.wait_end(PATIENCE), "{command} ends the machine");
        assert_eq!(clone.status().unwrap(), Status::Ended(end));
    }
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_full_disk_pauses_the_machine_and_it_goes_on_when_there_is_room() {
    let guest = guest();
    let dir = scratch();
    let small = Small::mount(&dir.path().join("small"));
    let mut spec = spec(&guest, dir.path(), "full", 27);
    let disk = small.0.join("disk0");
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    let user = spec.user.unwrap();
    std::os::unix::fs::chown(&disk, Some(user.uid), Some(user.gid)).unwrap();
    spec.config.disks = vec!["disk0".into()];
    spec.disks = vec![disk.clone()];
    let (machine, mut console) = boot(spec);
    let guard = Guard(&machine);
    console.send("tr '\\0' x < /dev/zero | dd of=/dev/vda bs=64k count=128 iflag=fullblock 2>/dev/null; sync; echo 'WRIT''TEN'");
    let deadline = std::time::Instant::now() + PATIENCE;
    let full = loop {
        match machine.status().unwrap() {
            Status::Running => assert!(
                std::time::Instant::now() < deadline,
                "the machine was never paused"
            ),
            other => break other,
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(
        full,
        Status::IoError {
            disk: "disk0".into(),
            no_space: true
        }
    );
    // A process that adopts the machine later gets the same answer: QEMU knows it, even if the event is long past.
    let home = machine.dir().to_owned();
    std::mem::forget(guard);
    drop(machine);
    let machine = Machine::adopt(&home).unwrap();
    let _machine = Guard(&machine);
    assert_eq!(machine.status().unwrap(), full);
    small.remount("size=32m");
    machine.cont().unwrap();
    console.expect("WRITTEN");
    assert_eq!(machine.status().unwrap(), Status::Running);
    let written = std::fs::read(&disk).unwrap();
    assert!(
        written[..8 << 20].iter().all(|&b| b == b'x'),
        "no write was lost"
    );
}

/// A file system of 1 MiB.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(at: &std::path::Path) -> Small {
        std::fs::create_dir(at).unwrap();
        let done = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "none"])
            .arg(at)
            .status();
        assert!(done.unwrap().success());
        Small(at.into())
    }

    fn remount(&self, option: &str) {
        let done = std::process::Command::new("mount")
            .args(["-o", &format!("remount,{option}")])
            .arg(&self.0)
            .status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .status();
    }
}
