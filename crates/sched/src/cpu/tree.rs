//! A balanced search tree whose nodes know how many lie to their left: who waits, in order, and how many are before each.

/// What a queue is ordered by: virtual time, then the task's number, so that no two are equal.
pub type Key = (i64, u32);

#[derive(Clone, Debug)]
struct Node {
    key: Key,
    left: Option<usize>,
    right: Option<usize>,
    /// Nodes of this subtree.
    size: usize,
}

/// The tree of section 4.4.2. The paper adds an index (nodes in the left subtree) to the kernel's red-black tree; here the index is
/// the left subtree's size, which also keeps the tree balanced (weight-balanced, by Hirai and Yamamoto's factors), so that nothing else
/// is stored for balance. All operations take time in proportion to the logarithm of the size.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    free: Vec<usize>,
    root: Option<usize>,
}

/// A subtree may weigh three times its sibling; beyond that it is rotated, twice if the inner grandchild is twice as heavy as the outer.
const HEAVIER_MAX: usize = 3;
const INNER_MAX: usize = 2;

impl Tree {
    /// Returns how many are in the tree.
    pub fn len(&self) -> usize {
        self.size(self.root)
    }

    /// Returns whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Adds a key. One that is there already is not added again.
    pub fn insert(&mut self, key: Key) {
        if self.ordinate(key).is_some() {
            return;
        }
        let node = Node {
            key,
            left: None,
            right: None,
            size: 1,
        };
        let new = match self.free.pop() {
            Some(new) => {
                self.nodes[new] = node;
                new
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.root = Some(self.put(self.root, new));
    }

    /// Removes a key and returns whether it was there.
    pub fn remove(&mut self, key: Key) -> bool {
        if self.ordinate(key).is_none() {
            return false;
        }
        let (root, removed) = self.take(self.root, key);
        self.root = root;
        self.free.extend(removed);
        true
    }

    /// Returns how many come before this key, or `None` if it is not there: the scheduling ordinate of algorithm 2, which the paper
    /// finds on the way up from the node, and this on the way down.
    pub fn ordinate(&self, key: Key) -> Option<usize> {
        let (mut at, mut before) = (self.root, 0);
        while let Some(node) = at.map(|at| &self.nodes[at]) {
            at = match key.cmp(&node.key) {
                std::cmp::Ordering::Less => node.left,
                std::cmp::Ordering::Equal => return Some(before + self.size(node.left)),
                std::cmp::Ordering::Greater => {
                    before += self.size(node.left) + 1;
                    node.right
                }
            };
        }
        None
    }

    /// Returns the key before which so many others come.
    pub fn nth(&self, mut ordinate: usize) -> Option<Key> {
        let mut at = self.root;
        while let Some(node) = at.map(|at| &self.nodes[at]) {
            let before = self.size(node.left);
            at = match ordinate.cmp(&before) {
                std::cmp::Ordering::Less => node.left,
                std::cmp::Ordering::Equal => return Some(node.key),
                std::cmp::Ordering::Greater => {
                    ordinate -= before + 1;
                    node.right
                }
            };
        }
        None
    }

    /// Returns all keys in order.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        (0..self.len()).filter_map(|ordinate| self.nth(ordinate))
    }

    fn size(&self, at: Option<usize>) -> usize {
        at.map_or(0, |at| self.nodes[at].size)
    }

    fn weight(&self, at: Option<usize>) -> usize {
        self.size(at) + 1
    }

    fn put(&mut self, at: Option<usize>, new: usize) -> usize {
        let Some(at) = at else {
            return new;
        };
        if self.nodes[new].key < self.nodes[at].key {
            self.nodes[at].left = Some(self.put(self.nodes[at].left, new));
        } else {
            self.nodes[at].right = Some(self.put(self.nodes[at].right, new));
        }
        self.balance(at)
    }

    /// Returns the subtree without the key, and the node that was unlinked.
    fn take(&mut self, at: Option<usize>, key: Key) -> (Option<usize>, Option<usize>) {
        let Some(at) = at else {
            return (None, None);
        };
        let Node {
            key: here,
            left,
            right,
            ..
        } = self.nodes[at];
        let removed = match (key.cmp(&here), left, right) {
            (std::cmp::Ordering::Less, ..) => {
                let (left, removed) = self.take(left, key);
                self.nodes[at].left = left;
                removed
            }
            (std::cmp::Ordering::Greater, ..) => {
                let (right, removed) = self.take(right, key);
                self.nodes[at].right = right;
                removed
            }
            (_, None, only) | (_, only, None) => return (only, Some(at)),
            (_, Some(_), Some(mut next)) => {
                while let Some(left) = self.nodes[next].left {
                    next = left;
                }
                let successor = self.nodes[next].key;
                let (right, removed) = self.take(right, successor);
                self.nodes[at].key = successor;
                self.nodes[at].right = right;
                removed
            }
        };
        (Some(self.balance(at)), removed)
    }

    /// Counts a subtree anew and returns its root once neither side is too heavy.
    fn balance(&mut self, at: usize) -> usize {
        let Node { left, right, .. } = self.nodes[at];
        self.nodes[at].size = self.size(left) + self.size(right) + 1;
        if let Some(heavy) = left
            && self.weight(left) > HEAVIER_MAX * self.weight(right)
        {
            let Node {
                left: outer,
                right: inner,
                ..
            } = self.nodes[heavy];
            if self.weight(inner) >= INNER_MAX * self.weight(outer) {
                self.nodes[at].left = Some(self.rotate_left(heavy));
            }
            return self.rotate_right(at);
        }
        if let Some(heavy) = right
            && self.weight(right) > HEAVIER_MAX * self.weight(left)
        {
            let Node {
                left: inner,
                right: outer,
                ..
            } = self.nodes[heavy];
            if self.weight(inner) >= INNER_MAX * self.weight(outer) {
                self.nodes[at].right = Some(self.rotate_right(heavy));
            }
            return self.rotate_left(at);
        }
        at
    }

    fn rotate_left(&mut self, at: usize) -> usize {
        let Some(up) = self.nodes[at].right else {
            return at;
        };
        self.nodes[at].right = self.nodes[up].left;
        self.nodes[up].left = Some(at);
        self.count(at, up)
    }

    fn rotate_right(&mut self, at: usize) -> usize {
        let Some(up) = self.nodes[at].left else {
            return at;
        };
        self.nodes[at].left = self.nodes[up].right;
        self.nodes[up].right = Some(at);
        self.count(at, up)
    }

    fn count(&mut self, down: usize, up: usize) -> usize {
        for at in [down, up] {
            let Node { left, right, .. } = self.nodes[at];
            self.nodes[at].size = self.size(left) + self.size(right) + 1;
        }
        up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Tree {
        /// Key, nodes in the left subtree, and the parent's key of each node, in order.
        fn rows(&self) -> Vec<(Key, usize, Option<Key>)> {
            let parent = |key: Key| {
                let mut nodes = self.nodes.iter().enumerate();
                nodes.find_map(|(at, node)| {
                    let is_child = [node.left, node.right]
                        .into_iter()
                        .flatten()
                        .any(|child| self.nodes[child].key == key);
                    (is_child && !self.free.contains(&at)).then_some(node.key)
                })
            };
            let row = |key: Key| {
                let node = self
                    .nodes
                    .iter()
                    .enumerate()
                    .find(|(at, node)| node.key == key && !self.free.contains(at));
                (key, self.size(node.unwrap().1.left), parent(key))
            };
            self.keys().map(row).collect()
        }

        fn depth(&self, at: Option<usize>) -> usize {
            at.map_or(0, |at| {
                let node = &self.nodes[at];
                1 + self.depth(node.left).max(self.depth(node.right))
            })
        }
    }

    /// Figure 4.4: index, process, virtual time in nanoseconds, its parent's, order.
    const FIGURE_4_4: [(usize, u32, i64, i64, usize); 8] = [
        (0, 3173, 5_556_399_127, 5_556_792_013, 0),
        (0, 3161, 5_556_620_530, 5_556_399_127, 1),
        (2, 3177, 5_556_792_013, 0, 2),
        (0, 3164, 5_557_007_206, 5_557_192_115, 3),
        (1, 3159, 5_557_192_115, 5_556_792_013, 4),
        (0, 3181, 5_557_198_289, 5_559_010_627, 5),
        (1, 3168, 5_559_010_627, 5_557_192_115, 6),
        (0, 3187, 5_560_140_783, 5_559_010_627, 7),
    ];

    #[test]
    fn the_snapshot_of_figure_4_4_has_its_indices_and_orders() {
        let mut tree = Tree::default();
        // a parent before its children
        for at in [2, 0, 4, 1, 3, 6, 5, 7] {
            let (_, process, time, ..) = FIGURE_4_4[at];
            tree.insert((time, process));
        }
        let rows = tree.rows();
        assert_eq!(rows.len(), FIGURE_4_4.len());
        for ((index, process, time, parent, order), row) in FIGURE_4_4.into_iter().zip(rows) {
            let (key, left, above) = row;
            assert_eq!((key, left), ((time, process), index));
            assert_eq!(above.map_or(0, |(time, _)| time), parent, "{process}");
            assert_eq!(tree.ordinate(key), Some(order), "{process}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_sorted_list_and_stays_shallow(
            steps in proptest::collection::vec((any::<bool>(), 0i64..40, 0u32..4), 1..300)
        ) {
            let mut tree = Tree::default();
            let mut list = std::collections::BTreeSet::new();
            for (adds, time, number) in steps {
                let key = (time, number);
                if adds {
                    tree.insert(key);
                    list.insert(key);
                } else {
                    prop_assert_eq!(tree.remove(key), list.remove(&key));
                }
                prop_assert_eq!(tree.len(), list.len());
                prop_assert!(tree.keys().eq(list.iter().copied()));
                for (order, key) in list.iter().enumerate() {
                    prop_assert_eq!(tree.ordinate(*key), Some(order));
                }
                // 1 / log2(4/3): what three to one allows
                let bound = 2.41 * ((list.len() + 1) as f64).log2() + 1.0;
                prop_assert!((tree.depth(tree.root) as f64) <= bound);
            }
            // places of what was removed are used again
            prop_assert!(tree.nodes.len() <= 160);
        }
    }
}
