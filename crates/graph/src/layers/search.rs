//! Layers looked for one after the other.

use std::collections::HashMap;
use std::sync::Arc;

use super::Layer;

/// How far behind the last that was found one is looked for before all are.
const NEAR: usize = 3;

/// A search for layers in lists, in which those that are looked for have mostly the same order: of a long chain a change concerns a few layers.
pub(super) struct Search<'a> {
    lists: &'a [&'a [Arc<Layer>]],
    key: fn(&Arc<Layer>) -> usize,
    /// Of each list the place behind the last that was found.
    next: Vec<usize>,
    /// All of them, once one is not where it was expected.
    all: Option<HashMap<usize, (usize, usize)>>,
}

impl<'a> Search<'a> {
    /// One by `key`, which no two layers share.
    pub(super) fn of(lists: &'a [&'a [Arc<Layer>]], key: fn(&Arc<Layer>) -> usize) -> Self {
        Self { lists, key, next: vec![0; lists.len()], all: None }
    }

    /// The layer with this key.
    pub(super) fn find(&mut self, wanted: usize) -> Option<&'a Arc<Layer>> {
        let (list, at) = self.near(wanted).or_else(|| self.far(wanted))?;
        self.next[list] = at + 1;
        self.lists[list].get(at)
    }

    fn near(&self, wanted: usize) -> Option<(usize, usize)> {
        self.lists.iter().zip(&self.next).enumerate().find_map(|(list, (layers, next))| {
            let found = layers[*next..].iter().take(NEAR).position(|layer| (self.key)(layer) == wanted);
            found.map(|at| (list, next + at))
        })
    }

    fn far(&mut self, wanted: usize) -> Option<(usize, usize)> {
        let (lists, key) = (self.lists, self.key);
        let all = self.all.get_or_insert_with(|| {
            let places = lists.iter().enumerate().rev().flat_map(|(list, layers)| {
                layers.iter().enumerate().rev().map(move |(at, layer)| (key(layer), (list, at)))
            });
            places.collect()
        });
        all.get(&wanted).copied()
    }
}
