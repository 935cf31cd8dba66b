//! Many hosts that want one image of one hub within a second, in a short run: a dozen.
mod common;

#[test]
fn nobody_fails_where_many_hosts_want_one_image_at_once_and_some_copy_all_of_it() {
    let measured = common::Measured::of(&["swarm-storm", "--quick"]);
    measured.holds("storm_failed", |value| value == 0.0);
    for name in ["start_s", "copy_s", "seed_upload_ratio"] {
        measured.holds(name, |value| value > 0.0);
    }
}
