//! floe's scheduler for sched_ext (`crates/scx/`) in a kernel that takes it: an emulated guest with Debian's Linux 6.18 is booted once, and does all
//! that is looked at here (`check.rs` in `crates/scx/examples/scx_guest/`).
use anyhow::{Context, bail};
use floe_contention::cpu_scx::{OBJECT, boot, prepare};
use std::collections::BTreeMap;
use std::path::Path;

/// A guest that takes longer hangs, in seconds.
const PATIENCE_S: u32 = 480;

/// What the guest has told: of each line its first word, and the others.
#[derive(Default)]
struct Told(BTreeMap<String, String>);

impl Told {
    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        let Some((_, said)) = line.split_once('@') else {
            return Ok(());
        };
        match said.split_once(' ') {
            Some(("error", why)) => bail!("in the guest: {why}"),
            Some((what, rest)) => self.0.insert(what.to_owned(), rest.to_owned()),
            None => self.0.insert(said.to_owned(), String::new()),
        };
        Ok(())
    }

    fn of(&self, what: &str) -> &str {
        let said = self
            .0
            .get(what)
            .with_context(|| format!("{what}: {:?}", self.0));
        said.unwrap()
    }

    fn numbers(&self, what: &str) -> Vec<f64> {
        let words = self.of(what).split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    }
}

#[test]
#[ignore = "needs QEMU, clang, cargo and the guest of make guest-scx, which has a kernel of Debian's packages: make test-all"]
fn the_kernel_takes_the_scheduler_and_has_its_own_again_when_the_loader_is_killed() {
    // kept, so that a second try compiles nothing
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scx");
    let mut told = Told::default();
    let order = format!("check,{OBJECT}");
    let initrd = prepare(&scratch).unwrap();
    boot(&initrd, &order, PATIENCE_S, |line| told.line(line)).unwrap();
    // the verifier has taken it, once no other scheduler was there
    let refused = told.of("refused");
    let named = "the scheduler other is loaded (sched_ext)";
    assert!(refused.contains(named), "{refused}");
    told.of("loaded");
    // as many vCPUs as cores: of all times that one got a core a sibling was there in none, as the scheduler itself has counted
    let run = told.of("run");
    let stacking_pct = run.split_whitespace().nth(8);
    assert_eq!(stacking_pct, Some("0.000"), "{run}");
    assert_eq!(told.numbers("many"), [200.0], "vCPUs that got a core");
    // a machine that ends owes nobody: what was lent was used, given back, or written off
    let owing = told.numbers("owing");
    assert!(owing[0] > 0.0 && owing[1] == 0.0, "{owing:?}");
    // half a core of four, beside as many threads that have no quota: an eighth instead of half
    let shares = told.numbers("shares");
    assert!(shares[1] < shares[0] / 2.0, "{shares:?}");
    assert!(shares[1] > shares[0] / 10.0, "{shares:?}");
    let tasks = told.numbers("tasks");
    assert!(tasks[0] > 0.0 && tasks[1] == 0.0, "{tasks:?}");
    told.of("done");
}
