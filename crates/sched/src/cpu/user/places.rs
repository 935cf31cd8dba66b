//! Which cores each of a machine's vCPUs may use.

/// How many cores a host may have at most: what the kernel's own calls take without asking.
pub const CORES_MAX: usize = 1024;
const WORDS: usize = CORES_MAX / 64;

/// A set of cores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CoreSet([u64; WORDS]);

impl Default for CoreSet {
    fn default() -> Self {
        CoreSet([0; WORDS])
    }
}

impl std::fmt::Debug for CoreSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<u16> for CoreSet {
    /// Cores beyond [`CORES_MAX`] are left out.
    fn from_iter<I: IntoIterator<Item = u16>>(cores: I) -> Self {
        let mut set = CoreSet::default();
        for core in cores.into_iter().map(usize::from) {
            if let Some(word) = set.0.get_mut(core / 64) {
                *word |= 1 << (core % 64);
            }
        }
        set
    }
}

impl CoreSet {
    /// Its cores, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| (64 * at + bit) as u16)
        })
    }

    /// Whether a core is in it.
    pub fn has(&self, core: u16) -> bool {
        let core = usize::from(core);
        self.0
            .get(core / 64)
            .is_some_and(|word| word >> (core % 64) & 1 == 1)
    }

    /// How many cores are in it.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Divides cores among `count` siblings: parts that have no core in common if there are enough cores; otherwise one core each, with as
/// many siblings on each core as on any other, or one more. Neighbouring cores stay together, since they share caches.
pub(super) fn parts(cores: &CoreSet, count: usize) -> Vec<CoreSet> {
    let all: Vec<u16> = cores.iter().collect();
    let part = |number: usize| -> CoreSet {
        let first = number * all.len() / count;
        let next = ((number + 1) * all.len() / count).max(first + 1);
        all[first..next.min(all.len())].iter().copied().collect()
    };
    match all.is_empty() {
        true => vec![CoreSet::default(); count],
        false => (0..count).map(part).collect(),
    }
}

/// What each core is wanted for by the vCPUs of all machines, in cores.
#[derive(Debug)]
pub(super) struct Loads(Vec<f64>);

impl Loads {
    /// Adds up what each vCPU wants, where it may have it.
    pub fn of(wishes: impl Iterator<Item = (CoreSet, f64)>) -> Loads {
        let mut loads = Loads(vec![0.0; CORES_MAX]);
        for (place, wants) in wishes {
            loads.add(&place, wants);
        }
        loads
    }

    /// Adds what one vCPU wants, evenly over its cores; less than nothing takes it away.
    pub fn add(&mut self, place: &CoreSet, wants: f64) {
        let each = wants / place.len().max(1) as f64;
        for core in place.iter() {
            self.0[usize::from(core)] += each;
        }
    }

    /// What the cores of a set are wanted for, on average.
    pub fn mean(&self, place: &CoreSet) -> f64 {
        let sum: f64 = place.iter().map(|core| self.0[usize::from(core)]).sum();
        sum / place.len().max(1) as f64
    }
}
