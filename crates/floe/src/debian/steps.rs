//! How far mmdebstrap is, told from what it says.

/// News of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This is being done now.
    Step(&'static str),
    /// So many packages of those that are known by now have been fetched, unpacked and set up.
    Packages {
        /// Those that are done, each third of the work counted.
        done: u64,
        /// All of them.
        total: u64,
    },
}

/// What was said so far.
#[derive(Debug, Default)]
pub struct Heard {
    /// Packages that apt said it will install.
    total: u64,
    /// How many were fetched, unpacked, and set up, added.
    thirds: u64,
    /// The lists of packages are there.
    listed: bool,
}

/// What mmdebstrap says at the beginning of a step, and what that is called here.
const STEPS: [(&str, &str); 3] = [
    ("I: running apt-get update", "package lists"),
    ("I: downloading packages", "packages"),
    ("I: running --customize-hook", "kernel, agent and settings"),
];

impl Heard {
    /// Takes a line. Returns what is new.
    pub fn line(&mut self, line: &str) -> Option<Progress> {
        if let Some((_, step)) = STEPS.iter().find(|(said, _)| line.starts_with(said)) {
            self.listed |= *step == "packages";
            return Some(Progress::Step(step));
        }
        if let Some((before, _)) = line.split_once(" newly installed") {
            let count = before
                .rsplit(' ')
                .next()
                .and_then(|n| n.parse::<u64>().ok());
            self.total = self.total.saturating_add(count.unwrap_or(0));
        }
        let done = ["Get:", "Unpacking ", "Setting up "]
            .iter()
            .any(|said| line.starts_with(said));
        if !done || !self.listed || self.total == 0 {
            return None;
        }
        self.thirds += 1;
        Some(Progress::Packages {
            done: (self.thirds / 3).min(self.total),
            total: self.total,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_counted_in_what_apt_and_dpkg_say() {
        let said = "I: automatically chosen mode: root\n\
            I: running apt-get update...\n\
            Get:1 http://deb.debian.org/debian bookworm InRelease [151 kB]\n\
            I: downloading packages with apt...\n\
            0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.\n\
            Get:1 http://deb.debian.org/debian bookworm/main amd64 libc6 amd64 2.36 [2759 kB]\n\
            Get:2 http://deb.debian.org/debian bookworm/main amd64 bash amd64 5.2 [1 kB]\n\
            Selecting previously unselected package libc6:amd64.\n\
            Unpacking libc6:amd64 (2.36) ...\n\
            Unpacking bash (5.2) ...\n\
            Setting up libc6:amd64 (2.36) ...\n\
            Setting up bash (5.2) ...\n\
            0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.\n\
            Get:1 http://deb.debian.org/debian bookworm/main amd64 kmod amd64 30 [1 kB]\n\
            I: running --customize-hook directly: x\n";
        let mut heard = Heard::default();
        let told: Vec<_> = said
            .lines()
            .filter_map(|line| heard.line(line.trim()))
            .collect();
        let count = |done, total| Progress::Packages { done, total };
        let expected = [
            Progress::Step("package lists"),
            Progress::Step("packages"),
            count(0, 2),
            count(0, 2),
            count(1, 2),
            count(1, 2),
            count(1, 2),
            count(2, 2),
            count(2, 3),
            Progress::Step("kernel, agent and settings"),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn no_number_is_too_large() {
        let mut heard = Heard::default();
        for line in [
            "I: downloading packages",
            "18446744073709551615 newly installed",
            "9 newly installed",
            "x newly installed",
        ] {
            heard.line(line);
        }
        assert_eq!(
            heard.line("Get:1"),
            Some(Progress::Packages {
                done: 0,
                total: u64::MAX
            })
        );
    }
}
