//! Makes text that a guest, an image or another host wrote safe for a terminal: everything that would control the
//! terminal, or make text look like other text, is replaced by its number (`\x1b`, `\u{202e}`).
//!
//! All output of commands passes through here (`Output`, `CliError`, progress, `floe top`), since any of it may quote a
//! stranger. The exceptions are `floe console`, which connects a terminal directly, and `floe logs --raw`.

use std::fmt::Write;

/// Makes text of several lines safe; keeps line ends and tabs.
pub fn text(text: &str) -> String {
    let mut filter = Filter::default();
    let mut out = filter.feed(text.as_bytes());
    out += &filter.finish();
    out
}

/// Makes text for one line safe, such as a table's cell: line ends and tabs are replaced by their numbers, too.
pub fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push(&mut out, c));
    out
}

/// Makes a message safe and indents its further lines, so that none of them looks like the program's own (`fix: ...`).
pub fn message(message: &str) -> String {
    text(message.trim_end()).replace('\n', "\n  ")
}

/// Makes JSON safe without changing its value. Control characters below 32 are escaped in it anyway.
pub fn json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => out.push(c),
            c if is_plain(c) => out.push(c),
            c => {
                // these occur only inside strings
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out
}

/// Returns whether a terminal merely shows this character: it is no control character, does not change the direction of
/// what follows, and is visible.
fn is_plain(c: char) -> bool {
    let hidden = matches!(c,
        '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !hidden
}

fn push(out: &mut String, c: char) {
    // writing to a string can't fail
    let _ = match c {
        c if is_plain(c) => out.write_char(c),
        c if u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c)),
        c => write!(out, "\\u{{{:x}}}", u32::from(c)),
    };
}

/// Makes a stream of bytes safe, piece by piece. Drops carriage returns before a line end, which serial lines have.
#[derive(Debug, Default)]
pub struct Filter {
    /// The first bytes of an incomplete character.
    part: Vec<u8>,
    /// Number of carriage returns after which nothing has arrived yet.
    returns: usize,
}

impl Filter {
    /// Returns what can be shown after these bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> String {
        self.part.extend_from_slice(bytes);
        let part = std::mem::take(&mut self.part);
        let mut out = String::with_capacity(part.len());
        let mut rest = &part[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(good) => {
                    self.show(good, &mut out);
                    return out;
                }
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    self.show(std::str::from_utf8(good).unwrap_or_default(), &mut out);
                    let Some(len) = error.error_len() else {
                        self.part = bad.to_vec(); // at most 3 bytes
                        return out;
                    };
                    self.show_bytes(&bad[..len], &mut out);
                    rest = &bad[len..];
                }
            }
        }
    }

    /// Returns what is left when nothing follows.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        let part = std::mem::take(&mut self.part);
        self.show_bytes(&part, &mut out);
        self.show_returns(&mut out);
        out
    }

    fn show(&mut self, text: &str, out: &mut String) {
        for c in text.chars() {
            match c {
                '\r' => self.returns += 1,
                '\n' => {
                    self.returns = 0;
                    out.push('\n');
                }
                c => {
                    self.show_returns(out);
                    match c {
                        '\t' => out.push(c),
                        c => push(out, c),
                    }
                }
            }
        }
    }

    /// Shows bytes that are no text by their numbers. Terminals that do not know UTF-8 take some of them for escape
    /// sequences.
    fn show_bytes(&mut self, bytes: &[u8], out: &mut String) {
        if !bytes.is_empty() {
            self.show_returns(out);
        }
        for byte in bytes {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }

    fn show_returns(&mut self, out: &mut String) {
        out.push_str(&"\\x0d".repeat(std::mem::take(&mut self.returns)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A title, a colour, a question that the terminal answers, a clipboard, their C1 forms, directions, and invisible
    /// characters.
    const HOSTILE: &str = "\x1b]0;owned\x07 \x1b[31mred\x1b[0m \x1b[6n \x1b]52;c;eA==\x1b\\ \u{9b}2J \u{90}x\u{9c} \
                           a\u{202e}b\u{2066}c\u{200f}d\u{2028}e\u{200b}f\u{feff}g\u{e0041}h\x08\x7f\x00 overwritten\rnew";

    fn is_safe(shown: &str) -> bool {
        shown.chars().all(|c| is_plain(c) || c == '\n' || c == '\t')
    }

    #[test]
    fn what_would_steer_a_terminal_is_shown_by_its_number() {
        let shown = text(HOSTILE);
        assert!(is_safe(&shown), "{shown:?}");
        assert!(
            shown.starts_with(r"\x1b]0;owned\x07 \x1b[31mred\x1b[0m"),
            "{shown}"
        );
        assert!(
            shown.contains(r"\x9b2J \x90x\x9c a\u{202e}b\u{2066}c"),
            "{shown}"
        );
        assert!(
            shown.ends_with(r"\x08\x7f\x00 overwritten\x0dnew"),
            "{shown}"
        );
    }

    #[test]
    fn honest_text_stays_as_it_is() {
        let honest = "größer 東京 🎉 \\x1b a\tb\nnext";
        assert_eq!(text(honest), honest);
        assert_eq!(text("a\r\nb\r\r\nc\r\n"), "a\nb\nc\n");
        assert_eq!(line("a\nb\tc"), r"a\x0ab\x09c");
        assert_eq!(message("a\nfix: b\n"), "a\n  fix: b");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_wherever_they_are_cut() {
        let bytes = [
            HOSTILE.as_bytes(),
            b"\x9b2J\xff \xe2\x82",
            "€\r\n".as_bytes(),
            b"\xe2\x82",
        ]
        .concat();
        let mut whole = Filter::default();
        let shown = whole.feed(&bytes) + &whole.finish();
        assert!(
            shown.ends_with("\\x9b2J\\xff \\xe2\\x82€\n\\xe2\\x82"),
            "{shown}"
        );
        for size in 1..8 {
            let mut filter = Filter::default();
            let pieces = bytes.chunks(size).map(|piece| filter.feed(piece));
            let pieces = pieces.collect::<String>() + &filter.finish();
            assert_eq!(pieces, shown);
        }
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({"text": HOSTILE, HOSTILE: [1, "\u{1f600}\u{e0041}"]});
        let shown = json(&value.to_string());
        assert!(is_safe(&shown), "{shown}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }

    proptest! {
        #[test]
        fn nothing_gets_through(bytes: Vec<u8>, cut in 0usize..64) {
            let mut filter = Filter::default();
            let cut = cut.min(bytes.len());
            let shown = filter.feed(&bytes[..cut]) + &filter.feed(&bytes[cut..]) + &filter.finish();
            prop_assert!(is_safe(&shown));
            let lossy = String::from_utf8_lossy(&bytes);
            prop_assert!(is_safe(&line(&lossy)) && is_safe(&message(&lossy)));
        }
    }
}
