//! Writes to standard output: tables for people, JSON for programs.

pub use floe_api::size_text as bytes;
use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::error::CliError;
use super::visible;

/// The form of a command's answer.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
}

impl Output {
    /// Writes a value: as JSON, or as the text that `human` returns.
    pub fn value<T: Serialize>(
        self,
        value: &T,
        human: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        self.bytes(self.rendered(value, human)?.as_bytes())
    }

    /// As [`Output::value`], for a program that goes on whether anybody can read it or not: standard output may be a log on a
    /// full disk, or a pipe that was closed.
    pub fn announcement<T: Serialize>(self, value: &T, human: impl FnOnce(&T) -> String) {
        if let Ok(text) = self.rendered(value, human) {
            let mut out = io::stdout().lock();
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    }

    /// Writes the answer of a command that only reports that it is done.
    pub fn acknowledge(self, text: &str) -> Result<(), CliError> {
        self.value(&BTreeMap::from([("ok", true)]), |_| format!("{text}\n"))
    }

    fn rendered<T: Serialize>(
        self,
        value: &T,
        human: impl FnOnce(&T) -> String,
    ) -> Result<String, CliError> {
        if self.json {
            let text = serde_json::to_string(value)
                .map_err(|e| CliError::failed("cannot write the answer as JSON", e))?;
            Ok(visible::json(&text) + "\n")
        } else {
            Ok(visible::text(&human(value)))
        }
    }

    /// Writes text for people, parts of which strangers may have written. With JSON nothing: there the events have said it.
    pub fn text(self, text: &str) -> Result<(), CliError> {
        if self.json {
            return Ok(());
        }
        self.bytes(visible::text(text).as_bytes())
    }

    /// Writes bytes unchanged. It is no error if the reader closes early (`floe ps | head -1`).
    pub fn bytes(self, bytes: &[u8]) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            Err(e) => Err(CliError::failed("cannot write to standard output", e)),
            Ok(()) => Ok(()),
        }
    }
}

/// Aligns columns, two spaces apart; columns whose title begins with `>` are right-aligned. An empty table consists of
/// its titles.
pub fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let right: Vec<bool> = titles.iter().map(|t| t.starts_with('>')).collect();
    let titles: Vec<String> = titles
        .iter()
        .map(|t| t.trim_start_matches('>').to_owned())
        .collect();
    let shown = |row: Vec<String>| row.iter().map(|cell| visible::line(cell)).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(shown).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&titles]).filter_map(|r| r.get(column));
        cells.map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut out = String::new();
    for row in [&titles].into_iter().chain(&rows) {
        let cells = row.iter().enumerate().map(|(i, cell)| {
            let width = widths.get(i).copied().unwrap_or(0);
            if right.get(i) == Some(&true) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        out += line.trim_end();
        out += "\n";
    }
    out
}

/// Returns aligned `NAME  value` lines; empty values are left out.
pub fn fields(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let shown = pairs.iter().filter(|(_, value)| !value.is_empty());
    shown
        .map(|(name, value)| format!("{name:<width$}  {}\n", visible::line(value)))
        .collect()
}

/// Returns the word that the API has for one of several; nothing for `None`.
pub fn word(one: &impl Serialize) -> String {
    let word = serde_json::to_value(one).unwrap_or_default();
    word.as_str().unwrap_or_default().to_owned()
}

/// Returns how long ago a Unix time was: `5 s`, `3 min`, `2 h`, `4 d`.
pub fn age(created_unix_s: u64) -> String {
    span(now_unix_s().saturating_sub(created_unix_s))
}

/// Returns how long it is until a Unix time, in the same words.
pub fn until(unix_s: u64) -> String {
    span(unix_s.saturating_sub(now_unix_s()))
}

fn now_unix_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|d| d.as_secs()).unwrap_or(0)
}

fn span(s: u64) -> String {
    match s {
        0..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", s / 60),
        7200..=172_799 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86400),
    }
}

/// Formats milliseconds as `43 ms` or `2.1 s`.
pub fn seconds(ms: f64) -> String {
    if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1000.0)
    }
}

/// Returns the first 12 digits of an image id.
pub fn short(id: &str) -> String {
    id.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_narrow() {
        let rows = [
            vec!["web".into(), "1.0 GiB".into(), "x".into()],
            vec!["größer".into(), "12 KiB".into(), String::new()],
        ];
        assert_eq!(
            table(&["NAME", ">SIZE", "P"], rows),
            "NAME       SIZE  P\nweb     1.0 GiB  x\ngrößer   12 KiB\n"
        );
        assert_eq!(table(&["NAME", ">SIZE"], []), "NAME  SIZE\n");
    }

    #[test]
    fn a_cell_that_a_stranger_wrote_stays_a_cell() {
        let row = vec!["a\u{1b}[2K\nfake  1 GiB".into(), "x".into()];
        let shown = table(&["NAME", "P"], [row]);
        assert_eq!(
            shown,
            "NAME                     P\na\\x1b[2K\\x0afake  1 GiB  x\n"
        );
        let shown = fields(&[("id", "1\nname  other".into())]);
        assert_eq!(shown, "id  1\\x0aname  other\n");
    }

    #[test]
    fn sizes_and_ages_are_short() {
        let sizes = [
            0,
            1023,
            1024,
            1536,
            1 << 20,
            (1 << 20) - 1,
            3 << 40,
            u64::MAX,
        ];
        assert_eq!(
            sizes.map(bytes).join(" "),
            "0 B 1023 B 1.0 KiB 1.5 KiB 1.0 MiB 1.0 MiB 3.0 TiB 16384.0 PiB"
        );
        let spans = [5, 119, 120, 7200, 172_800].map(span).join(" ");
        assert_eq!(spans, "5 s 119 s 2 min 2 h 2 d");
    }

    #[test]
    fn empty_fields_are_left_out() {
        let text = fields(&[
            ("id", "abc".into()),
            ("parent", String::new()),
            ("x", "1".into()),
        ]);
        assert_eq!(text, "id      abc\nx       1\n");
    }
}
