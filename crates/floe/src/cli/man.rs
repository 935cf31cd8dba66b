//! `floe man`: the manual pages, made of what `--help` says.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use super::error::CliError;
use super::{Context, args, description};

/// Write the manual pages, one for each command, as floe.1, floe-run.1 and so on
#[derive(Debug, Args)]
#[command(after_help = "\
Example: for all users of this host
  floe man /usr/local/share/man/man1
  man floe-run
Example: look at one without installing it
  floe man pages && man -l pages/floe-fork.1")]
pub struct Manual {
    /// Directory for the pages; it is made if it is missing
    directory: PathBuf,
}

impl Manual {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let to = &self.directory;
        std::fs::create_dir_all(to).map_err(|e| CliError::file("make", to, e))?;
        let mut count = 0;
        for (file, text) in pages(description()) {
            let path = to.join(file);
            std::fs::write(&path, text).map_err(|e| CliError::file("write", &path, e))?;
            count += 1;
        }
        let outcome = floe_api::Outcome {
            path: Some(args::absolute(to)?),
            ..Default::default()
        };
        cx.out
            .value(&outcome, |_| format!("{}: {count} pages\n", to.display()))
    }
}

/// Returns the pages of a command and of all below it that are shown, as file name and content.
fn pages(floe: Command) -> Vec<(String, Vec<u8>)> {
    let version = format!("floe {}", floe.get_version().unwrap_or_default());
    let mut floe = floe.disable_help_subcommand(true);
    floe.build();
    let mut pages = Vec::new();
    let mut left = vec![floe];
    while let Some(command) = left.pop() {
        let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
        left.extend(shown.cloned());
        let man = Man::new(command.clone())
            .source(&version)
            .manual("floe's commands");
        let mut text = Vec::new();
        let written = page(&man, &command, &mut text);
        written.expect("memory takes what is written to it");
        pages.push((man.get_filename(), text));
    }
    pages
}

/// Writes one page. It has `clap_mangen`'s own sections but the last, which would run the lines of examples together.
fn page(man: &Man, command: &Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        man.render_subcommands_section(out)?;
    }
    let after = command.get_after_help().map(ToString::to_string);
    let mut roff = Roff::default();
    examples_and_notes(&after.unwrap_or_default(), &mut roff);
    roff.to_writer(out)
}

/// Renders the text below a command's help: paragraphs that begin with `Example`, whose indented lines stay as they are, and
/// notes.
fn examples_and_notes(text: &str, roff: &mut Roff) {
    let mut section = "";
    for paragraph in text.split("\n\n") {
        let kind = match paragraph.starts_with("Example") {
            true => "EXAMPLES",
            false => "NOTES",
        };
        match section == kind {
            true => roff.control("PP", []),
            false => roff.control("SH", [kind]),
        };
        section = kind;
        let mut typed = false;
        for line in paragraph.lines() {
            let indented = line.strip_prefix("  ");
            if indented.is_some() != typed {
                typed = !typed;
                let (one, two) = if typed { ("RS", "nf") } else { ("fi", "RE") };
                roff.control(one, []).control(two, []);
            }
            roff.text([roman(indented.unwrap_or(line))]);
        }
        if typed {
            roff.control("fi", []).control("RE", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_typed_keeps_its_lines_and_the_rest_is_text() {
        let mut roff = Roff::default();
        let text =
            "Example: two\n  floe a \\\n    --b\nExample: one\n  .floe\n\nA note\nof two lines.";
        examples_and_notes(text, &mut roff);
        let expected = "\
.SH EXAMPLES
Example: two
.RS
.nf
floe a \\\\
  \\-\\-b
.fi
.RE
Example: one
.RS
.nf
\\&.floe
.fi
.RE
.SH NOTES
A note
of two lines.
";
        assert!(roff.to_roff().ends_with(expected), "{}", roff.to_roff());
    }
}
