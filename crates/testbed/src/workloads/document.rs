//! `document`: a LaTeX document is written, typeset and converted. Fonts, class, chapters and conversion differ.
use super::{Session, choose};
use rand::seq::IndexedRandom;
use std::time::Duration;

const STEP_MAX: Duration = Duration::from_secs(200);

const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Artistic",
    "BSD",
    "CC0-1.0",
    "GFDL-1.3",
    "GPL-1",
    "GPL-2",
    "GPL-3",
    "LGPL-2.1",
    "LGPL-3",
    "MPL-1.1",
    "MPL-2.0",
];
const CLASSES: &[&str] = &["article", "report", "book"];
const FONTS: &[&str] = &[
    "mathpazo", "mathptmx", "helvet", "bookman", "charter", "utopia",
];
/// Commands that convert the PDF file.
const CONVERSIONS: &[&str] = &[
    "pdf2ps doc.pdf doc.ps",
    "gs -q -dBATCH -dNOPAUSE -sDEVICE=pnggray -r50 -dLastPage=3 -sOutputFile=page%d.png doc.pdf",
    "gs -q -dBATCH -dNOPAUSE -sDEVICE=txtwrite -sOutputFile=doc.txt doc.pdf",
];

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    let (class, font) = (choose(session, CLASSES), choose(session, FONTS));
    let chapters: Vec<&str> = LICENCES
        .choose_multiple(&mut session.random, 2)
        .copied()
        .collect();
    let make = format!(
        "mkdir -p /root/work; cd /root/work; /root/documents/make doc {class} {font} {} > doc.tex",
        chapters.join(" ")
    );
    session.shell(&make, STEP_MAX)?;
    for _ in 0..2 {
        // TeX reports an error if a font lacks a letter, but it writes the document anyway.
        session.try_shell("pdflatex -interaction=batchmode doc.tex", STEP_MAX)?;
    }
    session.shell("test -s doc.pdf", STEP_MAX)?;
    let conversion = choose(session, CONVERSIONS);
    session.shell(conversion, STEP_MAX)?;
    session.shell("ls -l", STEP_MAX)
}
