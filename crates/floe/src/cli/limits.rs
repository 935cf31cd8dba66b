//! How much of its host a machine may use: `floe limit`, and the same options of `floe run`.

use clap::Args;

use super::error::CliError;
use super::output::bytes;
use super::{Context, args};

/// Limits of a new machine.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Most processor time, in cores: 1.5 is one and a half. The machine and the clones that its guest makes share this limit and the next
    /// four; a clone that floe fork makes has limits of its own, as large
    #[arg(long, value_parser = cores, value_name = "CORES")]
    cpu_quota: Option<u32>,
    /// Most memory of its QEMU, such as 2G: what the guest has touched, and 50 to 100M of QEMU's own. A machine that uses
    /// more is ended
    #[arg(long, value_parser = args::memory, value_name = "SIZE")]
    memory_max: Option<u64>,
    /// Its share of this host's disk while others want something too: 1 to 1000, and 5 if nothing is said. One of 10 gets twice
    /// what one of 5 gets
    #[arg(long, value_parser = io_weight, value_name = "WEIGHT")]
    io_weight: Option<u32>,
    /// The part of this host's disk in percent beyond which its requests wait until nobody else has any
    #[arg(long, value_parser = io_cap, value_name = "PERCENT")]
    io_cap: Option<u32>,
    /// Fail its guest's requests that no source has served for this long, such as 5m: at a disk the guest gets an I/O error, at its
    /// memory the machine ends. Without it they wait as long as floe node --io-timeout says, which is for ever by default
    #[arg(long, value_parser = io_timeout, value_name = "TIME")]
    io_timeout: Option<u32>,
    /// Let its guest clone it: at most N clones that it and its clones have made can be there at a time. Without this a guest makes none
    #[arg(long, value_parser = clones, value_name = "N")]
    clones: Option<u32>,
}

impl LimitArgs {
    pub(super) fn limits(&self) -> floe_api::Limits {
        floe_api::Limits {
            cpu_millicores: self.cpu_quota,
            memory_max_bytes: self.memory_max,
            io_weight: self.io_weight,
            io_cap_percent: self.io_cap,
            io_timeout_s: self.io_timeout,
            clones: self.clones,
        }
    }
}

/// Change how much of this host a machine and the clones that its guest makes may use together, also while it runs
#[derive(Debug, Args)]
#[command(after_help = "\
Example: half a core
  floe limit web --cpu-quota 0.5
Example: no limit of its processor time any more, and at most 2 GiB of memory
  floe limit web --cpu-quota none --memory-max 2G
Example: twice the share of the disk that others have (floe io status shows what comes of it)
  floe limit web --io-weight 10
Example: an I/O error in its guest, instead of waiting, for what no source gives within five minutes
  floe limit web --io-timeout 5m
Example: programs in its guest may make clones of it, eight at a time (floe-guest, libfloe, floe-mpirun)
  floe limit web --clones 8
Example: parked when nobody has used it for half an hour (floe park tells what that is)
  floe limit web --park-after 30m
Example: its guest keeps the blocks that it deletes, for a disk that is to be fast at any time
  floe limit web --trim off
Example: what it may take, and what it takes
  floe ps web

Limits hold at once and for all later starts; what is not named stays as it is. A machine and the clones that its guest makes share
their limits: changed for one of them, they change for all. A clone that floe fork makes has limits of its own.")]
pub struct Limit {
    /// The machine
    machine: String,
    /// Most processor time, in cores: 1.5 is one and a half; none removes the limit
    #[arg(long, value_parser = or_none(cores), value_name = "CORES")]
    cpu_quota: Option<u32>,
    /// Most memory of its QEMU, such as 2G; none removes the limit
    #[arg(long, value_parser = or_none(args::memory), value_name = "SIZE", required_unless_present_any = ["cpu_quota", "io_weight", "io_cap", "io_timeout", "clones", "park_after", "trim"])]
    memory_max: Option<u64>,
    /// Its share of this host's disk while others want something too: 1 to 1000; none is 5, as if nothing had been said
    #[arg(long, value_parser = or_none(io_weight), value_name = "WEIGHT")]
    io_weight: Option<u32>,
    /// The part of this host's disk in percent beyond which its requests wait until nobody else has any; none removes it
    #[arg(long, value_parser = or_none(io_cap), value_name = "PERCENT")]
    io_cap: Option<u32>,
    /// Fail its guest's requests that no source has served for this long, such as 5m, also those that wait already; none is as the node
    /// was started
    #[arg(long, value_parser = or_none(io_timeout), value_name = "TIME")]
    io_timeout: Option<u32>,
    /// How many clones that its guest and its clones' guests have made can be there at a time; none lets no guest make one. Those that are
    /// there stay
    #[arg(long, value_parser = or_none(clones), value_name = "N")]
    clones: Option<u32>,
    /// Park it once nobody has used it and it has done next to nothing for this long, such as 10m; off is never
    #[arg(long, value_parser = time_or_off, value_name = "TIME")]
    park_after: Option<u64>,
    /// Whether the node asks its guest, once a day, to give back what it deletes: on or off. floe disk trim works all the same
    #[arg(long, value_parser = on_or_off, value_name = "on|off")]
    trim: Option<bool>,
}

impl Limit {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let request = floe_api::LimitRequest {
            cpu_millicores: self.cpu_quota,
            memory_max_bytes: self.memory_max,
            io_weight: self.io_weight,
            io_cap_percent: self.io_cap,
            io_timeout_s: self.io_timeout,
            clones: self.clones,
            park_after_s: self.park_after,
            trim: self.trim,
        };
        let machine = cx.client()?.limit(&self.machine, &request)?;
        cx.out.value(&machine, |machine| {
            let limits = match described(&machine.limits) {
                text if text.is_empty() => "nothing".to_owned(),
                text => text,
            };
            let idle = match parked_after(machine.park_after_s) {
                text if text.is_empty() => text,
                text => format!(", and {text} of idleness"),
            };
            let trim = match machine.no_trim {
                true => "; its guest is not asked by itself to give back what it deletes",
                false => "",
            };
            format!("{} is limited to {limits}{idle}{trim}\n", machine.name)
        })
    }
}

/// Describes limits; empty if there are none.
pub(super) fn described(limits: &floe_api::Limits) -> String {
    let cores = limits
        .cpu_millicores
        .map(|millicores| format!("{} cores", f64::from(millicores) / 1000.0));
    let memory = limits
        .memory_max_bytes
        .map(|max| format!("{} of memory", bytes(max)));
    let weight = limits
        .io_weight
        .map(|weight| format!("weight {weight} at the disk"));
    let cap = limits
        .io_cap_percent
        .map(|percent| format!("{percent} % of the disk while others want it"));
    let timeout = limits
        .io_timeout_s
        .map(|s| format!("{s} s for what no source gives"));
    let clones = limits.clones.map(|clones| match clones {
        1 => "1 clone that its guest makes".to_owned(),
        clones => format!("{clones} clones that its guest makes"),
    });
    let all = [cores, memory, weight, cap, timeout, clones];
    let all = all.into_iter().flatten();
    all.collect::<Vec<String>>().join(", ")
}

/// Says when a machine is parked; empty if never.
pub(super) fn parked_after(after_s: Option<u64>) -> String {
    after_s.map_or_else(String::new, |s| format!("parked after {s} s"))
}

/// Describes what a machine has used; empty if nothing was counted.
pub(super) fn taken(stats: &floe_api::MachineStats) -> String {
    match (stats.cpu_us, stats.memory_bytes) {
        (0, 0) => String::new(),
        (us, memory) => format!(
            "{} of memory, {:.1} s of processor time",
            bytes(memory),
            us as f64 / 1e6
        ),
    }
}

/// Parses a number of cores into thousandths of a core.
fn cores(text: &str) -> Result<u32, String> {
    let help = "write a number of cores such as 0.5 or 2";
    let number: f64 = text.parse().map_err(|_| help.to_owned())?;
    let millicores = (number * 1000.0).round();
    let range = f64::from(floe_api::CPU_MILLICORES_MIN)..=f64::from(floe_api::CPU_MILLICORES_MAX);
    match range.contains(&millicores) {
        true => Ok(millicores as u32),
        false => Err(format!(
            "at least {}, and no more than {}; {help}",
            range.start() / 1000.0,
            range.end() / 1000.0
        )),
    }
}

/// Parses a whole number within bounds.
fn within(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("write a whole number from {least} to {most}"))
}

fn io_weight(text: &str) -> Result<u32, String> {
    within(text, floe_api::IO_WEIGHT_MIN, floe_api::IO_WEIGHT_MAX)
}

fn io_cap(text: &str) -> Result<u32, String> {
    within(text, 1, 100)
}

fn io_timeout(text: &str) -> Result<u32, String> {
    let seconds = args::time_s(text)?;
    let limit = u32::try_from(seconds).ok();
    let limit = limit.filter(|s| (1..=floe_api::IO_TIMEOUT_S_MAX).contains(s));
    limit.ok_or_else(|| "write a time from 1s to 7d".to_owned())
}

fn clones(text: &str) -> Result<u32, String> {
    within(text, 1, floe_api::CLONES_MAX)
}

/// Lets a parser take `none` as well, which is 0.
fn or_none<T: From<u8> + 'static>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| match text {
        "none" => Ok(T::from(0_u8)),
        text => parse(text),
    }
}

fn time_or_off(text: &str) -> Result<u64, String> {
    match text {
        "off" => Ok(0),
        text => match args::time_s(text)? {
            0 => Err("write off, or a time such as 10m".to_owned()),
            s => Ok(s),
        },
    }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_read_as_thousandths_and_none_is_none() {
        assert_eq!((cores("1.5"), cores("0.01")), (Ok(1500), Ok(10)));
        for bad in ["", "0", "-1", "0.001", "NaN", "inf", "1e99", "none"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
        let memory = or_none(args::memory);
        assert_eq!((or_none(cores)("none"), memory("none")), (Ok(0), Ok(0)));
        assert_eq!(memory("2G"), Ok(2 << 30));
        assert_eq!((time_or_off("off"), time_or_off("10m")), (Ok(0), Ok(600)));
        assert_eq!((io_weight("10"), or_none(io_cap)("none")), (Ok(10), Ok(0)));
        for bad in ["0", "1001", "-1", "1.5", ""] {
            assert!(io_weight(bad).is_err(), "{bad}");
        }
        assert!(io_cap("101").is_err() && io_cap("0").is_err());
        let of_requests = (io_timeout("5m"), or_none(io_timeout)("none"));
        assert_eq!(of_requests, (Ok(300), Ok(0)));
        assert!(
            io_timeout("0").is_err() && io_timeout("8d").is_err() && io_timeout("none").is_err()
        );
        assert_eq!((clones("8"), or_none(clones)("none")), (Ok(8), Ok(0)));
        assert!(clones("0").is_err() && clones("1025").is_err());
        assert_eq!((on_or_off("on"), on_or_off("off")), (Ok(true), Ok(false)));
        assert!(on_or_off("none").is_err() && on_or_off("").is_err());
        assert!(time_or_off("0").is_err() && time_or_off("soon").is_err());
    }

    #[test]
    fn limits_are_told_in_words() {
        let mut limits = floe_api::Limits {
            cpu_millicores: Some(500),
            memory_max_bytes: Some(2 << 30),
            ..Default::default()
        };
        assert_eq!(described(&limits), "0.5 cores, 2.0 GiB of memory");
        limits = floe_api::Limits {
            io_weight: Some(10),
            io_cap_percent: Some(25),
            ..Default::default()
        };
        let text = "weight 10 at the disk, 25 % of the disk while others want it";
        assert_eq!(described(&limits), text);
        limits = floe_api::Limits {
            io_timeout_s: Some(300),
            clones: Some(8),
            ..Default::default()
        };
        let text = "300 s for what no source gives, 8 clones that its guest makes";
        assert_eq!(described(&limits), text);
        assert_eq!(described(&Default::default()), "");
    }
}
