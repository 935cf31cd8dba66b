//! How often the classification is right, over days at a desk that are made up ([`days`]).

mod days;

use days::{Score, View, learned, scores};
use floe_sched::classify::List;

/// A player's reads are told apart from all others: it is known by its pace, by whatever else it is seen.
const PLAYER_RECALL: f64 = 0.9;

fn at_least(score: Score, precision: f64, recall: f64) {
    assert!(score.precision() >= precision, "{score:?}");
    assert!(score.recall() >= recall, "{score:?}");
    assert!(score.player_recall() >= PLAYER_RECALL, "{score:?}");
}

#[test]
fn with_an_agents_names_nearly_every_request_is_judged_right() {
    at_least(scores(View::Agent, &List::default()), 0.95, 0.95);
    at_least(scores(View::Agent, &learned()), 0.95, 0.95);
}

#[test]
fn with_names_that_an_agent_tells_a_moment_later_nearly_every_request_is_judged_right() {
    at_least(scores(View::Told, &List::default()), 0.92, 0.95);
    at_least(scores(View::Told, &learned()), 0.95, 0.95);
}

#[test]
fn with_files_most_requests_are_judged_right() {
    at_least(scores(View::File, &List::default()), 0.85, 0.8);
}

#[test]
fn without_any_name_it_is_better_than_to_guess() {
    at_least(scores(View::Nothing, &List::default()), 0.5, 0.5);
}
