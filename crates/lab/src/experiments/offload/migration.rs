//! QEMU's own way to another host, with what it has for slow links: the disk below is on both sides, what the guest wrote on it is
//! mirrored, memory goes over several connections that compress. The order is that of the field's managers: the mirror ends while the
//! guest stands still, and the guest goes on once the other side has let go of its disk.
use super::site::{JOB_MAX, Link};
use anyhow::{bail, ensure};
use floe_contention::io::{CpuCap, DEVICE_PERCENT};
use floe_testbed::guest::Guest;
use floe_testbed::link::Bridge;
use floe_testbed::plain::{Hardware, PlainQemu};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Ports of the strong host: for the state, and for the disk.
const STATE_PORT: u16 = 7072;
const DISK_PORT: u16 = 7073;
/// Connections for memory.
const CHANNELS: u32 = 2;
/// What QEMU calls the disk, and what its mirror is called.
const DISK: &str = "virtio0";
const MIRROR: &str = "mirror";
/// Longest time for a migration.
const MIGRATE_MAX: Duration = Duration::from_secs(1800);
/// How often QEMU is asked how far it is: seldom enough not to take a weak device's processor.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// For how long the guest may stand still, in milliseconds: QEMU's own default. A guest that changes more than goes over the link in that
/// time would never arrive, so it is doubled each time that this long has passed, as managers do.
const STILL_MS: u64 = 300;
const WIDEN_EVERY: Duration = Duration::from_secs(30);

/// How a guest has gone.
pub struct Went {
    /// Seconds from the command until it answered on the other side.
    pub answers_s: f64,
    /// Seconds of them in which it stood still.
    pub still_s: f64,
}

/// The guest on the device, under its quota.
struct Device {
    qemu: PlainQemu,
    /// Dropped after QEMU, whose process it has.
    _cap: CpuCap,
}

/// Boots a guest on a weak device, lets it change for a while, and moves it to a strong host.
pub fn migrated(
    scratch: &Path,
    guest: &Guest,
    memory: u64,
    link: &Link,
    (changes, wait): (&str, Duration),
) -> anyhow::Result<Went> {
    std::fs::create_dir_all(scratch)?;
    let bridge = link.bridge()?;
    let hardware = Hardware::new(guest, memory, 1).with_balloon();
    let qemu = PlainQemu::boot(&scratch.join("device"), hardware.on(&bridge.ends.near))?;
    let cap = CpuCap::new(scratch, qemu.process(), DEVICE_PERCENT)?;
    let mut device = Device { qemu, _cap: cap };
    device.qemu.tell(changes, JOB_MAX)?;
    std::thread::sleep(wait);
    let began = Instant::now();
    let mut there = PlainQemu::waiting(&scratch.join("cloud"), hardware.on(&bridge.ends.far))?;
    let has_disk = guest.disk().exists();
    takes(&mut there, has_disk)?;
    let still = gives(&mut device.qemu, has_disk)?;
    goes_on(&mut there, has_disk)?;
    there.tell("", JOB_MAX)?;
    Ok(Went {
        answers_s: began.elapsed().as_secs_f64(),
        still_s: still.elapsed().as_secs_f64(),
    })
}

/// Has a QEMU do these things as well.
fn able(qemu: &mut PlainQemu, what: &[&str]) -> anyhow::Result<()> {
    let all: Vec<Value> = what
        .iter()
        .map(|one| json!({ "capability": one, "state": true }))
        .collect();
    qemu.ask("migrate-set-capabilities", json!({ "capabilities": all }))?;
    let how = json!({ "multifd-compression": "zstd", "multifd-channels": CHANNELS });
    qemu.ask("migrate-set-parameters", how)?;
    Ok(())
}

/// Has the strong host's QEMU listen.
fn takes(there: &mut PlainQemu, has_disk: bool) -> anyhow::Result<()> {
    able(there, &["multifd", "late-block-activate"])?;
    if has_disk {
        let at = json!({ "host": Bridge::FAR.to_string(), "port": DISK_PORT.to_string() });
        let address = json!({ "addr": { "type": "inet", "data": at } });
        there.ask("nbd-server-start", address)?;
        let disk = json!({ "device": DISK, "writable": true });
        there.ask("nbd-server-add", disk)?;
    }
    let uri = format!("tcp:{}:{STATE_PORT}", Bridge::FAR);
    there.ask("migrate-incoming", json!({ "uri": uri }))?;
    Ok(())
}

/// Sends disk and state. Returns since when the guest stands still.
fn gives(here: &mut PlainQemu, has_disk: bool) -> anyhow::Result<Instant> {
    let began = Instant::now();
    if has_disk {
        let target = format!("nbd:{}:{DISK_PORT}:exportname={DISK}", Bridge::FAR);
        let mirror = json!({
            "job-id": MIRROR, "device": DISK, "target": target, "sync": "top", "mode": "existing", "format": "raw",
        });
        here.ask("drive-mirror", mirror)?;
        while !mirror_is_ready(here)? {
            ensure!(
                began.elapsed() < MIGRATE_MAX,
                "the disk is not mirrored within {MIGRATE_MAX:?}"
            );
            std::thread::sleep(ASK_EVERY);
        }
    }
    able(here, &["multifd", "pause-before-switchover"])?;
    here.unbound_bandwidth()?;
    let uri = format!("tcp:{}:{STATE_PORT}", Bridge::FAR);
    here.ask("migrate", json!({ "uri": uri }))?;
    let (mut still, mut limit_ms, mut widened) = (None, STILL_MS, Instant::now());
    loop {
        let told = here.ask("query-migrate", json!({}))?;
        match told["status"].as_str() {
            Some("completed") => return Ok(still.unwrap_or_else(Instant::now)),
            Some("failed" | "cancelled") => bail!("QEMU could not move its guest: {told}"),
            // it may say so once more when it goes on
            Some("pre-switchover") if still.is_none() => {
                still = Some(Instant::now());
                if has_disk {
                    ends_mirror(here)?;
                }
                let next = json!({ "state": "pre-switchover" });
                here.ask("migrate-continue", next)?;
            }
            _ if began.elapsed() > MIGRATE_MAX => bail!("QEMU is still moving its guest: {told}"),
            _ => {}
        }
        if still.is_none() && widened.elapsed() > WIDEN_EVERY {
            (limit_ms, widened) = (limit_ms * 2, Instant::now());
            let limit = json!({ "downtime-limit": limit_ms });
            here.ask("migrate-set-parameters", limit)?;
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// Whether the mirror has all that the guest wrote, and follows it.
fn mirror_is_ready(here: &mut PlainQemu) -> anyhow::Result<bool> {
    let jobs = here.ask("query-block-jobs", json!({}))?;
    let Some(job) = jobs.as_array().and_then(|jobs| jobs.first()) else {
        bail!("the mirror of the disk has ended by itself");
    };
    Ok(job["ready"] == true)
}

/// Ends a mirror that is ready: what it has is whole then.
fn ends_mirror(here: &mut PlainQemu) -> anyhow::Result<()> {
    here.ask("block-job-cancel", json!({ "device": MIRROR }))?;
    let began = Instant::now();
    while here.ask("query-block-jobs", json!({}))? != json!([]) {
        ensure!(
            began.elapsed() < MIGRATE_MAX,
            "the mirror of the disk does not end within {MIGRATE_MAX:?}"
        );
        std::thread::sleep(ASK_EVERY);
    }
    Ok(())
}

/// Lets a guest go on that has come.
fn goes_on(there: &mut PlainQemu, has_disk: bool) -> anyhow::Result<()> {
    let began = Instant::now();
    while there.ask("query-status", json!({}))?["status"] == "inmigrate" {
        ensure!(
            began.elapsed() < MIGRATE_MAX,
            "QEMU has not loaded the guest within {MIGRATE_MAX:?}"
        );
        std::thread::sleep(ASK_EVERY);
    }
    if has_disk {
        there.ask("nbd-server-stop", json!({}))?;
    }
    there.ask("cont", json!({}))?;
    Ok(())
}
