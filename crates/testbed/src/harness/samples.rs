//! Values and their statistics.

/// Measured values of one thing.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    values: Vec<f64>,
}

impl Samples {
    /// Adds a value. NaN is an error of the experiment.
    pub fn push(&mut self, value: f64) {
        assert!(value.is_finite(), "a measurement gave {value}");
        self.values.push(value);
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns all values in the order in which they were measured.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the value below which the share `q` (0 to 1) of all values lies, interpolated between neighbours; NaN
    /// without values.
    pub fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else {
            return f64::NAN;
        };
        let at = q.clamp(0.0, 1.0) * last as f64;
        let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        low + (high - low) * at.fract()
    }

    /// Returns the median.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the distance from the first to the third quartile, in the values' unit.
    pub fn spread(&self) -> f64 {
        self.quantile(0.75) - self.quantile(0.25)
    }

    /// Returns the ratios to another series, pair by pair, since runs of the same round had the same conditions.
    pub fn over(&self, other: &Samples) -> Samples {
        assert_eq!(self.len(), other.len(), "ratios need runs in pairs");
        let mut ratios = Samples::default();
        for (ours, theirs) in self.values.iter().zip(&other.values) {
            ratios.push(ours / theirs);
        }
        ratios
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        let mut samples = Samples::default();
        values.into_iter().for_each(|value| samples.push(value));
        samples
    }
}

/// One candidate of a comparison: each call runs it once and returns its value.
pub type Run<'a> = &'a mut dyn FnMut() -> anyhow::Result<f64>;

/// Runs each candidate `rounds` times in turn, every other round in reverse order, so that running first is no advantage.
pub fn interleave(rounds: usize, candidates: &mut [Run]) -> anyhow::Result<Vec<Samples>> {
    let mut all = vec![Samples::default(); candidates.len()];
    for round in 0..rounds {
        for step in 0..candidates.len() {
            let which = if round % 2 == 0 {
                step
            } else {
                candidates.len() - 1 - step
            };
            all[which].push(candidates[which]()?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Samples {
        values.iter().copied().collect()
    }

    #[test]
    fn the_median_ignores_one_wild_value() {
        assert_eq!(of(&[3.0, 1.0, 2.0, 1e9, 2.5]).median(), 2.5);
        assert_eq!(of(&[1.0, 2.0]).median(), 1.5);
        assert_eq!(of(&[7.0]).quantile(0.99), 7.0);
        assert!(of(&[]).median().is_nan());
    }

    #[test]
    fn the_spread_is_the_middle_half() {
        assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0]).spread(), 2.0);
        assert_eq!(of(&[4.0, 4.0]).spread(), 0.0);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        assert_eq!(
            of(&[2.0, 30.0]).over(&of(&[1.0, 10.0])).values(),
            [2.0, 3.0]
        );
    }

    #[test]
    fn runs_alternate_and_change_who_is_first() {
        let order = std::cell::RefCell::new(String::new());
        let mut a = || {
            order.borrow_mut().push('a');
            Ok(1.0)
        };
        let mut b = || {
            order.borrow_mut().push('b');
            Ok(2.0)
        };
        let all = interleave(3, &mut [&mut a, &mut b]).unwrap();
        assert_eq!(*order.borrow(), "abbaab");
        assert_eq!((all[0].median(), all[1].median()), (1.0, 2.0));
    }

    proptest! {
        #[test]
        fn quantiles_are_ordered_and_within_the_values(
            values in proptest::collection::vec(-1e9f64..1e9, 1..50), a in 0.0f64..1.0, b in 0.0f64..1.0
        ) {
            let samples = of(&values);
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(samples.quantile(low) <= samples.quantile(high));
            prop_assert!(samples.quantile(0.0) == values.iter().copied().fold(f64::INFINITY, f64::min));
            prop_assert!(samples.quantile(1.0) == values.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        }
    }
}
