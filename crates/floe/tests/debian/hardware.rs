//! What a cold start can give a machine beside its image's disks: what cloud-init sets up, a UEFI firmware with its variables, a
//! CD-ROM, other models of disks and cards. All of it goes with the machine: into captures, clones, other hosts.

use crate::support::command;
use crate::support::node::{Signal, TestNode, eventually, finish, guest};
use floe_api::*;
use std::{
    fs,
    io::{Cursor, Write},
    path::{Path, PathBuf},
};

/// A boot sector that reads sector 1 of its disk, writes it to the serial line and changes it to [`SAVED`], again and again.
const DISK_PROGRAM: &str = "fa31c08ed88ec08ed0bc007c8816007efbb442e82200be0080e8310066c706058073617665c606098064b80043e80800b909\
    00f4e2fdebd9be657c8a16007ecd137201c3be757ce80300f4ebfdac84c0741288c3bafd03eca82074f888d8baf803eeebe9\
    c310000100008000000100000000000000692f6f206572726f720d0a00";

/// A boot sector that writes [`DISC`] to the serial line, again and again.
const DISC_PROGRAM: &str = "31c08ed8be277cac84c0741288c3bafd03eca82074f888d8baf803eeebe9fbb90900f4e2fdebdd66726f6d20746865206469\
    73630d0a00";

const FRESH: &str = "disk fresh\r\n";

const SAVED: &str = "disk saved\r\n";

const DISC: &str = "from the disc";

const IO_ERROR: &str = "i/o error";

/// Long enough for a Debian that boots emulated on a busy host, and cloud-init in it.
const BOOT_PATIENCE: std::time::Duration = std::time::Duration::from_secs(900);

fn program(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

/// A disk of 1 MiB with the program, for a BIOS.
fn bios_disk(dir: &Path) -> PathBuf {
    let mut disk = vec![0; 1 << 20];
    let code = program(DISK_PROGRAM);
    disk[..code.len()].copy_from_slice(&code);
    disk[510..512].copy_from_slice(b"\x55\xaa");
    disk[512..][..FRESH.len()].copy_from_slice(FRESH.as_bytes());
    write(dir, "bios.raw", &disk)
}

/// A disc with the program, as El Torito has it: without emulation of a floppy.
fn disc(dir: &Path) -> PathBuf {
    const BLOCK: usize = 2048;
    const CATALOG: usize = 19;
    const PROGRAM: usize = 20;
    let mut disc = vec![0; 24 * BLOCK + 700]; // of an odd size
    let mut put = |at: usize, bytes: &[u8]| disc[at..at + bytes.len()].copy_from_slice(bytes);
    put(16 * BLOCK, b"\x01CD001\x01");
    put(17 * BLOCK, b"\x00CD001\x01EL TORITO SPECIFICATION");
    put(17 * BLOCK + 0x47, &(CATALOG as u32).to_le_bytes());
    put(18 * BLOCK, b"\xffCD001\x01");
    // the sum of the validating entry's words is zero
    put(CATALOG * BLOCK, &[1]);
    put(CATALOG * BLOCK + 28, &[0xaa, 0x55, 0x55, 0xaa]);
    put(CATALOG * BLOCK + 32, &[0x88, 0, 0, 0, 0, 0, 4, 0]);
    put(CATALOG * BLOCK + 40, &(PROGRAM as u32).to_le_bytes());
    put(PROGRAM * BLOCK, &program(DISC_PROGRAM));
    write(dir, "disc.iso", &disc)
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn import(node: &TestNode, disk: &Path, name: &str) -> (Outcome, String) {
    let request = ImportRequest {
        disks: vec![disk.display().to_string()],
        name: Some(name.into()),
        memory_bytes: Some(64 << 20),
        ..Default::default()
    };
    let mut notes = String::new();
    let events = node.client().import(&request).unwrap();
    let outcome = events.finish(|event| {
        if let Event::Note { message } = event {
            notes += message;
        }
    });
    (outcome.unwrap(), notes)
}

fn capture(node: &TestNode, machine: &str, name: &str) -> Result<Outcome, ApiError> {
    let request = CaptureRequest {
        name: Some(name.into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    let events = node.client().capture(machine, &request);
    let done = events.and_then(|events| events.finish(|_| ()));
    done.map_err(|error| error.to_api())
}

/// The request for an image, known on another node by its directory.
fn run(image: &str, name: &str) -> RunRequest {
    RunRequest {
        image: image.into(),
        name: Some(name.into()),
        ..Default::default()
    }
}

fn place(node: &TestNode, image: &str) -> String {
    format!("{}/repo/{image}", node.home().display())
}

fn refusal(node: &TestNode, request: &RunRequest) -> ApiError {
    let events = node.client().run(request);
    let done = events.and_then(|events| events.finish(|_| ()));
    done.expect_err("this should have been refused").to_api()
}

/// Waits until a machine has written something more often than before.
fn wait_more(node: &TestNode, machine: &str, text: &str) {
    let count = || node.console(machine).matches(text).count();
    let before = count();
    eventually(&format!("{text:?} of {machine} once more"), || {
        count() > before
    });
}

fn region(node: &TestNode, image: &str, region: &str) -> Vec<u8> {
    let path = node.home().join("region.raw");
    let request = ExportRequest {
        image: image.into(),
        region: region.into(),
        format: ExportFormat::Raw,
        path: path.display().to_string(),
        force: true,
    };
    finish(node.client().export(&request).unwrap());
    fs::read(path).unwrap()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_cloud_init_sets_up_goes_with_the_machine() {
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEj0gzsWZqRvmBQzIJ4ZT9YVs+7iQdLyMXEO9jTfT6mX me";
    let mut node = TestNode::start();
    node.import_tiny("tiny", None);
    let seeded = |name: &str| RunRequest {
        seed: Some(SeedRequest {
            user_data: Some("#cloud-config\npackages: [vim]\n".into()),
            ssh_keys: vec![key.into()],
            hostname: Some("web.example".into()),
            ..Default::default()
        }),
        ..run("tiny", name)
    };
    node.run(&seeded("one"));
    node.wait_console("one", "floe-guest ready");
    let read = "sync; echo 3 > /proc/sys/vm/drop_caches; strings /dev/vda > /s; grep -c -e 'hostname: \"web.example' \
                -e 'packages: .vim' -e me.]$ /s | sed s/^/lines-/; sed -n 's/^instance-id/id/p' /s; cat /sys/block/vda/ro";
    node.type_and_wait("one", read, "lines-3\r\nid: \"floe-");
    node.wait_console("one", "\"\r\n1\r\n"); // the disk can't be written
    let id = |node: &TestNode, machine: &str| {
        let mut found = String::new();
        eventually("the whole id", || {
            let text = node.console(machine);
            let id = text.rsplit_once("id: \"floe-").map(|(_, id)| id);
            match id.and_then(|id| id.split_once('"')) {
                Some((id, _)) => found = id.to_owned(),
                None => return false,
            }
            true
        });
        found
    };
    let first = id(&node, "one");
    // a clone has it while no image does
    let fork = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    finish(node.client().fork("one", &fork).unwrap());
    node.type_and_wait("one.1", read, "lines-3\r\nid: \"floe-");
    assert_eq!(id(&node, "one.1"), first);
    node.client().remove_machine("one.1", true).unwrap();
    assert!(capture(&node, "one", "live").unwrap().image.unwrap().live);

    // on another host, from nothing but the image; and a clone there
    let there = TestNode::start();
    there.run(&run(&place(&node, "live"), "two"));
    there.type_and_wait("two", read, "lines-3\r\nid: \"floe-");
    assert_eq!(id(&there, "two"), first);
    finish(there.client().fork("two", &fork).unwrap());
    there.type_and_wait("two.1", read, "lines-3\r\nid: \"floe-");
    // a node that takes the machine over finds it, too
    node.end(Signal::KILL);
    node.start_again();
    eventually("the machine on the next node", || {
        node.client().machine("one").unwrap().status == MachineStatus::Running
    });
    node.type_and_wait("one", &format!("{read}; echo over-$((1+1))"), "over-2");
    assert_eq!(id(&node, "one"), first);
    // the same machine starts with the same seed, another run with another
    let now = StopRequest {
        now: true,
        timeout_s: None,
    };
    node.client().stop("one", &now).unwrap();
    finish(node.client().start("one", &Default::default()).unwrap());
    eventually("the second boot", || {
        node.console("one").matches("floe-guest ready").count() == 2
    });
    node.type_and_wait("one", &format!("{read}; echo again-$((1+1))"), "again-2");
    assert_eq!(id(&node, "one"), first);
    node.client().remove_machine("one", true).unwrap();
    node.run(&RunRequest {
        cold: true,
        image: "live".into(),
        ..seeded("three")
    });
    node.wait_console("three", "floe-guest ready");
    node.type_and_wait("three", read, "lines-3\r\nid: \"floe-");
    assert_ne!(id(&node, "three"), first);

    let late = RunRequest {
        image: "live".into(),
        ..seeded("four")
    };
    let error = refusal(&node, &late);
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.message.contains("--user-data") && error.fix.contains("--cold"));
    let mut private = seeded("four");
    private.seed.as_mut().unwrap().ssh_keys = vec!["-----BEGIN OPENSSH PRIVATE KEY-----".into()];
    assert!(refusal(&node, &private).message.contains("private"));
    let machines = node.client().machines().unwrap().machines;
    assert_eq!(machines.len(), 1, "nothing of a refused run is left");
}

#[test]
#[ignore = "needs root, FUSE, QEMU and the guest stock: make test-all"]
fn a_real_cloud_init_takes_the_seed_and_a_real_ssh_server_answers() {
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEj0gzsWZqRvmBQzIJ4ZT9YVs+7iQdLyMXEO9jTfT6mX its-owner";
    let node = TestNode::start();
    let disk = guest("stock/disk.raw");
    node.import_guest("stock", "stock", Some(Path::new(&disk)));
    // what it has set up is shown on the console, by the last thing that it does
    let user_data = "#cloud-config\n\
        write_files:\n- path: /root/written\n  content: from-the-seed\n\
        runcmd:\n\
        - [sh, -c, 'for i in 1; do cat /root/written; echo; echo \"host $(hostname)\"; \
        cat /home/debian/.ssh/authorized_keys; cloud-init query ds.meta_data; echo set-up-$((1+1)); done > /dev/console 2>&1']\n";
    node.run(&RunRequest {
        memory_bytes: Some(1 << 30),
        seed: Some(SeedRequest {
            user_data: Some(user_data.into()),
            ssh_keys: vec![key.into()],
            ..Default::default()
        }),
        ..run("stock", "its-name")
    });
    let until = std::time::Instant::now() + BOOT_PATIENCE;
    while !node.console("its-name").contains("set-up-2") {
        assert!(
            std::time::Instant::now() < until,
            "{}",
            node.console("its-name")
        );
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    let console = node.console("its-name");
    for text in [
        "from-the-seed",
        "host its-name",
        key,
        "\"instance-id\": \"floe-",
    ] {
        assert!(console.contains(text), "{text:?} is missing:\n{console}");
    }

    // ssh without a key, an address or a question: to root, and to the user whom cloud-init has made
    for (args, says) in [
        (&["ssh", "its-name", "--", "hostname"][..], "its-name\n"),
        (
            &["ssh", "--user", "debian", "its-name", "--", "id", "-un"],
            "debian\n",
        ),
    ] {
        let output = command::ends(command::floe(&node, args));
        assert!(output.status.success(), "{}", command::said(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), says);
    }
    // what ssh sends is an input of a person as far as it is as short as a key
    let report = node.client().io().unwrap();
    let known = report.machines.iter().find(|one| one.name == "its-name");
    assert!(known.is_some_and(|one| one.inputs > 0), "{report:?}");
    let failing = ["ssh", "its-name", "--", "exit 7"];
    let output = command::ends(command::floe(&node, &failing));
    assert_eq!(output.status.code(), Some(7), "{}", command::said(&output));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn machines_of_every_disk_model_go_on_elsewhere_or_say_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let (node, there) = (TestNode::start(), TestNode::start());
    let (_, notes) = import(&node, &bios_disk(dir.path()), "disk");
    assert!(!notes.contains("UEFI"), "{notes}");
    let models = [
        (DiskModel::Sata, NetworkModel::E1000),
        (DiskModel::Scsi, NetworkModel::E1000e),
        (DiskModel::Ide, NetworkModel::Rtl8139),
        (DiskModel::Nvme, NetworkModel::Virtio),
    ];
    for (disk, network) in models {
        let name = format!("{disk:?}").to_lowercase();
        node.run(&RunRequest {
            hardware: Hardware {
                disk_model: Some(disk),
                network_model: Some(network),
                ..Default::default()
            },
            ..run("disk", &name)
        });
        node.wait_console(&name, SAVED);
        assert!(node.console(&name).contains(FRESH));
        let live = format!("{name}-live");
        let captured = capture(&node, &name, &live);
        if disk == DiskModel::Nvme {
            let error = captured.unwrap_err();
            assert_eq!(error.code, ErrorCode::Refused);
            assert!(error.message.contains("NVMe"), "{error}");
            wait_more(&node, &name, SAVED);
        } else {
            captured.unwrap();
            wait_more(&node, &name, SAVED);
            // where its state is loaded, its controller goes on reading and writing
            there.run(&run(&place(&node, &live), &name));
            there.wait_console(&name, SAVED);
            wait_more(&there, &name, SAVED);
            assert!(!there.console(&name).contains(FRESH));
            // and its image remembers the hardware for a boot
            let cold = format!("{name}-cold");
            there.run(&RunRequest {
                cold: true,
                ..run(&place(&node, &live), &cold)
            });
            there.wait_console(&cold, SAVED);
            assert!(!there.console(&cold).contains(FRESH));
            let image = node.client().image(&live).unwrap();
            let told = (image.hardware.disk_model, image.hardware.network_model);
            assert_eq!(told, (Some(disk), Some(network)));
            assert_eq!(image.hardware.firmware, None);
            let inspect = command::floe(&node, &["image", "inspect", &live]);
            let shown = command::said(&command::ends(inspect));
            let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap();
            assert!(line("disk model").ends_with(&name), "{shown}");
            assert!(!shown.contains("\nfirmware"), "{shown}");
            let devices = image.devices.join(" ");
            let driver = format!("{network:?}").to_lowercase();
            assert!(devices.contains(&driver) && !devices.contains("virtio-net"));
            assert!(!there.console(&cold).contains(IO_ERROR));
            there.client().remove_machine(&name, true).unwrap();
            there.client().remove_machine(&cold, true).unwrap();
        }
        assert!(!node.console(&name).contains(IO_ERROR));
        resize(&node, &name, disk);
        node.client().remove_machine(&name, true).unwrap();
    }
}

/// Makes the disk of a machine that runs larger, or is told why that can't be done with this model.
fn resize(node: &TestNode, name: &str, model: DiskModel) {
    let before = node.client().disks(name).unwrap().disks[0].bytes;
    let bytes = before + (1 << 20);
    let disk = "disk0".to_owned();
    let resized = node
        .client()
        .resize_disk(name, &ResizeRequest { disk, bytes });
    match model {
        DiskModel::Scsi => assert_eq!(resized.unwrap().disks[0].bytes, bytes),
        _ => {
            let error = resized.unwrap_err().to_api();
            assert_eq!(error.code, ErrorCode::Refused, "{error}");
            assert!(error.fix.contains("floe stop"), "{error}");
            let now = node.client().disks(name).unwrap().disks[0].bytes;
            assert_eq!(now, before);
        }
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_disc_is_booted_where_the_disk_is_empty_and_belongs_to_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let (node, there) = (TestNode::start(), TestNode::start());
    let empty = write(dir.path(), "empty.raw", &vec![0; 2 << 20]);
    import(&node, &empty, "empty");
    import(&node, &bios_disk(dir.path()), "disk");
    let disc = disc(dir.path());
    let bytes = fs::read(&disc).unwrap();
    let with_disc = |image: &str, name: &str| RunRequest {
        cdrom: Some(disc.display().to_string()),
        ..run(image, name)
    };
    node.run(&with_disc("empty", "setup"));
    node.run(&with_disc("disk", "disk"));
    node.run(&RunRequest {
        boot: Some(BootFirst::Cdrom),
        ..with_disc("disk", "rescue")
    });
    for name in ["setup", "rescue"] {
        node.wait_console(name, DISC);
    }
    node.wait_console("disk", SAVED);
    assert!(!node.console("disk").contains(DISC) && !node.console("rescue").contains("disk"));
    capture(&node, "setup", "live").unwrap();
    let mut stored = region(&node, "live", "cdrom");
    assert!(stored.len() < bytes.len() + 4096);
    stored.truncate(bytes.len());
    assert!(stored == bytes);
    fs::remove_file(&disc).unwrap();
    there.run(&run(&place(&node, "live"), "setup"));
    wait_more(&there, "setup", DISC);

    let gone = refusal(&node, &with_disc("empty", "gone"));
    assert_eq!(gone.code, ErrorCode::NotFound, "{gone}");
    write(dir.path(), "disc.iso", &vec![0; 2 << 20]);
    let no_disc = refusal(&node, &with_disc("empty", "gone"));
    assert_eq!(no_disc.code, ErrorCode::Refused, "{no_disc}");
}

/// The name of a variable of a UEFI firmware, and what the shell in it prints.
const VARIABLE: &str = "FloeMark";

const MARK_SET: &str = "the mark is set";

const TICK: &str = "the shell goes on";

/// A disk with nothing but an EFI system partition, on which the firmware's shell finds a script: the first boot sets a variable and
/// stays in the shell, a later one starts Linux.
fn efi_disk(dir: &Path) -> PathBuf {
    const FIRST: usize = 2048 * 512;
    const BYTES: usize = 48 << 20;
    let script = format!(
        "@echo -off\r\n\
         setvar {VARIABLE} -guid 2d1e7a3c-64a1-4b0e-9d5b-0f6c1c1f0a01 > nul\r\n\
         if %lasterror% == 0 then\r\n\
           fs0:\\vmlinuz.efi initrd=\\initrd console=ttyS0 no_timer_check\r\n\
         endif\r\n\
         setvar {VARIABLE} -guid 2d1e7a3c-64a1-4b0e-9d5b-0f6c1c1f0a01 -nv -bs -rt =0x2a\r\n\
         echo {MARK_SET}\r\n\
         :again\r\n\
         stall 300000\r\n\
         echo {TICK}\r\n\
         goto again\r\n"
    );
    let mut part = Cursor::new(vec![0; BYTES]);
    let options = fatfs::FormatVolumeOptions::new().volume_label(*b"ESP        ");
    fatfs::format_volume(&mut part, options).unwrap();
    {
        let volume = fatfs::FileSystem::new(&mut part, fatfs::FsOptions::new()).unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let mut file = volume.root_dir().create_file(name).unwrap();
            file.write_all(bytes).unwrap();
            file.flush().unwrap();
        };
        file("startup.nsh", script.as_bytes());
        file("vmlinuz.efi", &fs::read(guest("tiny/vmlinuz")).unwrap());
        file("initrd", &fs::read(guest("tiny/initrd")).unwrap());
    }
    let mut disk = vec![0; FIRST];
    disk[446 + 4] = 0xef;
    disk[446 + 8..446 + 12].copy_from_slice(&(FIRST as u32 / 512).to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&(BYTES as u32 / 512).to_le_bytes());
    disk[510..512].copy_from_slice(b"\x55\xaa");
    disk.extend(part.into_inner());
    write(dir, "efi.raw", &disk)
}

#[test]
#[ignore = "needs root, FUSE, QEMU and ovmf: make test-all"]
fn a_uefi_machine_keeps_its_variables_wherever_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (node, there) = (TestNode::start(), TestNode::start());
    let (imported, notes) = import(&node, &efi_disk(dir.path()), "efi");
    assert!(notes.contains("UEFI"), "{notes}");
    let names = |node: &TestNode, image: &str| {
        let regions = node.client().image(image).unwrap().regions;
        regions.into_iter().map(|r| r.name).collect::<Vec<_>>()
    };
    let id = imported.image.unwrap().id;
    assert_eq!(names(&node, &id), ["disk0", "firmware", "nvram"]);
    let big = |image: &str, name: &str| RunRequest {
        memory_bytes: Some(512 << 20),
        ..run(image, name)
    };
    node.run(&big("efi", "one"));
    node.wait_console("one", MARK_SET);
    wait_more(&node, "one", TICK);
    capture(&node, "one", "shell").unwrap();
    wait_more(&node, "one", TICK);
    let mark: Vec<u8> = VARIABLE.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let has_mark = |bytes: &[u8]| bytes.windows(mark.len()).any(|window| window == mark);
    assert!(has_mark(&region(&node, "shell", "nvram")));
    assert!(!has_mark(&region(&node, "efi", "nvram")));

    // elsewhere the shell goes on, on the firmware that came with it
    there.run(&run(&place(&node, "shell"), "two"));
    wait_more(&there, "two", TICK);
    assert!(!there.console("two").contains(MARK_SET));
    // and a boot there finds the variable, and starts Linux, which sees the firmware
    there.run(&RunRequest {
        cold: true,
        ..run(&place(&node, "shell"), "linux")
    });
    there.wait_console("linux", "floe-guest ready");
    assert!(!there.console("linux").contains(MARK_SET));
    let look = "test -d /sys/firmware/efi && echo booted-by-uefi-$((1+1))";
    there.type_and_wait("linux", look, "booted-by-uefi-2");
    // what the firmware has drawn is no sign of a guest that uses the screen
    let face = || there.client().console("linux").unwrap().face;
    eventually("a console in front of the user", || {
        face() == Some(Face::Console)
    });
    let fork = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    finish(there.client().fork("linux", &fork).unwrap());
    there.type_and_wait("linux.1", look, "booted-by-uefi-2");
    // a clone that was forked and starts again has its own copy of the variables
    finish(node.client().fork("one", &fork).unwrap());
    wait_more(&node, "one.1", TICK);
    node.client().remove_machine("one", true).unwrap();
    let now = StopRequest {
        now: true,
        timeout_s: None,
    };
    node.client().stop("one.1", &now).unwrap();
    finish(node.client().start("one.1", &Default::default()).unwrap());
    node.wait_console("one.1", "floe-guest ready");
}
