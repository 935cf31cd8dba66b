//! Describes how a machine's image streams: the report at the end of `floe run --link-report`.

use std::time::Duration;

use super::error::CliError;
use super::output::{bytes, fields};
use super::{Context, interrupt};
use floe_api::client::Client;
use floe_api::{MachineStatus, StreamInfo};

/// How often the report checks whether the machine still runs.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Bits per byte, because rates are shown in the unit in which links are sold.
const BITS: f64 = 8.0;

/// Waits until the machine ends or the user interrupts, then prints what its link carried.
pub fn report(cx: &Context, machine: String) -> Result<(), CliError> {
    let client = cx.client()?;
    let mut last = client.stream_info(&machine)?;
    let (socket, out, name) = (cx.socket.clone(), cx.out, machine.clone());
    interrupt::ends_with(move || {
        let info = Client::connect(&socket).and_then(|client| client.stream_info(&name));
        match info
            .map_err(CliError::from)
            .and_then(|info| out.value(&info, |i| text(&name, i)))
        {
            Ok(()) => 0,
            Err(error) => {
                error.print(out.json);
                error.exit_code().into()
            }
        }
    });
    if !cx.out.json {
        eprintln!("Ctrl-C tells what the link carried; the machine goes on");
    }
    loop {
        // figures of a link change all the time: this is how often they are shown
        std::thread::sleep(LOOK_EVERY);
        match client.stream_info(&machine) {
            // these are the last figures before the end, since an ended machine has none
            Ok(info) if alive(info.state) => last = info,
            Ok(info) => {
                last.state = info.state;
                last.buffering = None;
                break;
            }
            Err(error) if error.to_api().code == floe_api::ErrorCode::NotFound => break,
            Err(error) => return Err(error.into()),
        }
    }
    cx.out.value(&last, |info| text(&machine, info))
}

fn alive(state: MachineStatus) -> bool {
    !matches!(
        state,
        MachineStatus::Stopped | MachineStatus::Failed | MachineStatus::Parked
    )
}

/// Formats bytes per second as bits per second, the unit in which links are sold.
pub fn rate(bytes_s: f64) -> String {
    match bytes_s * BITS {
        b if b >= 1e9 => format!("{:.1} Gbit/s", b / 1e9),
        b if b >= 1e6 => format!("{:.1} Mbit/s", b / 1e6),
        b => format!("{:.0} kbit/s", b / 1e3),
    }
}

fn text(machine: &str, info: &StreamInfo) -> String {
    let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    let saved = if info.saved_bytes > 0 {
        let all = info.saved_bytes + info.fetched_bytes;
        let share = percent(info.saved_bytes, all);
        format!(
            ", {} of the image ({share:.0} %) were not needed",
            bytes(info.saved_bytes)
        )
    } else {
        String::new()
    };
    let unknown = || "not measured".to_owned();
    fields(&[
        ("machine", machine.to_owned()),
        ("fetched", format!("{}{saved}", bytes(info.fetched_bytes))),
        (
            "rate",
            info.rate_bytes_s
                .map_or_else(unknown, |bytes_s| rate(bytes_s as f64)),
        ),
        (
            "round trip",
            info.rtt_us
                .map_or_else(unknown, |us| format!("{:.1} ms", us as f64 / 1e3)),
        ),
        (
            "misses",
            format!(
                "{} of {} chunks touched ({:.2} %)",
                info.misses,
                info.touched,
                percent(info.misses, info.touched)
            ),
        ),
        (
            "fetch ratio",
            format!(
                "{:.2} chunks fetched for each one touched",
                info.fetch_ratio
            ),
        ),
        (
            "waits",
            format!("{}, {:.1} s in all", info.waits, info.waited_s),
        ),
        (
            "pauses",
            format!("{} to buffer, {:.1} s in all", info.pauses, info.paused_s),
        ),
        (
            "model",
            if info.model {
                "of earlier runs"
            } else {
                "none"
            }
            .into(),
        ),
    ])
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn info() -> StreamInfo {
        StreamInfo {
            state: MachineStatus::Running,
            buffering: None,
            model: true,
            planned_chunks: 1000,
            buffered_chunks: 250,
            misses: 7,
            touched: 1000,
            fetched_bytes: 10 << 20,
            saved_bytes: 90 << 20,
            rate_bytes_s: Some(900_000),
            rtt_us: Some(120_400),
            fetch_ratio: 1.234,
            waits: 9,
            waited_s: 1.5,
            pauses: 2,
            paused_s: 3.25,
        }
    }

    #[test]
    fn the_report_tells_what_the_link_carried_and_what_was_waited_for() {
        let said = text("web", &info());
        for part in [
            "10.0 MiB, 90.0 MiB of the image (90 %) were not needed",
            "7.2 Mbit/s",
            "120.4 ms",
            "7 of 1000 chunks touched (0.70 %)",
            "1.23 chunks",
            "9, 1.5 s in all",
            "2 to buffer, 3.2 s in all",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let local = StreamInfo {
            rate_bytes_s: None,
            rtt_us: None,
            saved_bytes: 0,
            touched: 0,
            misses: 0,
            ..info()
        };
        let said = text("web", &local);
        assert!(
            said.contains("not measured") && !said.contains("needed"),
            "{said}"
        );
        assert!(said.contains("0 of 0 chunks touched (0.00 %)"), "{said}");
    }

    #[test]
    fn rates_are_told_as_links_are_sold() {
        assert_eq!(rate(900_000.0), "7.2 Mbit/s");
        assert_eq!(rate(0.0), "0 kbit/s");
        assert_eq!(rate(125e6), "1.0 Gbit/s");
    }
}
