//! Runs an experiment as its users do, and reads its report.
use floe_testbed::harness::Report;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// An experiment that has ended well.
pub struct Measured {
    report: Report,
    /// What it printed.
    said: String,
}

impl Measured {
    /// Runs `floe-lab` with these arguments, in a scratch directory of its own.
    pub fn of(arguments: &[&str]) -> Measured {
        // QEMUs run as users of their own, who must be able to pass through to their files
        let dir = tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o711))
            .tempdir()
            .unwrap();
        let json = dir.path().join("report.json");
        let output = Command::new(env!("CARGO_BIN_EXE_floe-lab"))
            .args(arguments)
            .arg("--scratch")
            .arg(dir.path())
            .arg("--json")
            .arg(&json)
            .output()
            .unwrap();
        let [errors, figures] =
            [&output.stderr, &output.stdout].map(|out| String::from_utf8_lossy(out));
        let said = format!("{errors}\n{figures}");
        assert!(output.status.success(), "{said}");
        let report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        Measured { report, said }
    }

    /// Holds a figure to what it must be.
    pub fn holds(&self, name: &str, is_good: impl Fn(f64) -> bool) {
        let value = self.report.figures[name].value;
        assert!(is_good(value), "{name} is {value}\n{}", self.said);
    }
}
