//! A part of the disk, and where it is stored: one row of the map.

/// A range of the disk that is stored in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins on the disk, in bytes.
    pub start: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The image of the chain that decides: 0 is the top one.
    pub depth: u32,
    /// An image of the chain maps this range; otherwise it is unallocated everywhere and reads as zeroes.
    pub present: bool,
    /// It reads as zeroes.
    pub zero: bool,
    /// Bytes are stored for it.
    pub data: bool,
    /// They are stored compressed.
    pub compressed: bool,
    /// Where in the file it begins, if it is stored there byte for byte.
    pub offset: Option<u64>,
    /// That file.
    pub file: Option<String>,
}

impl Extent {
    /// Data of which nothing more is known.
    pub fn without_map(start: u64, length: u64) -> Self {
        let (zero, data, compressed) = (false, true, false);
        Self { start, length, depth: 0, present: true, zero, data, compressed, offset: None, file: None }
    }

    /// Whether it is data that does not stand in the file as it is: compressed, for one.
    pub fn is_without_place(&self) -> bool {
        self.data && !self.zero && self.offset.is_none()
    }

    /// Whether `next` continues this extent on the disk and in the file.
    fn continues_with(&self, next: &Self) -> bool {
        let contiguous = match (self.offset, next.offset) {
            (Some(offset), Some(next)) => offset.checked_add(self.length) == Some(next),
            (None, None) => true,
            _ => false,
        };
        let same = (self.depth, self.present, self.zero, self.data, self.compressed)
            == (next.depth, next.present, next.zero, next.data, next.compressed);
        contiguous && same && self.file == next.file
    }
}

/// Joins neighbours that are stored in one piece, as qemu-img does.
pub struct Joined<I> {
    extents: I,
    held: Option<Extent>,
}

impl<E, I: Iterator<Item = Result<Extent, E>>> Joined<I> {
    /// Joins what `extents` gives, in the order of the disk.
    pub fn new(extents: I) -> Self {
        Self { extents, held: None }
    }
}

impl<E, I: Iterator<Item = Result<Extent, E>>> Iterator for Joined<I> {
    type Item = Result<Extent, E>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let next = match self.extents.next() {
                None => return self.held.take().map(Ok),
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(next)) => next,
            };
            match &mut self.held {
                Some(held) if held.continues_with(&next) => held.length += next.length,
                held => {
                    if let Some(done) = held.replace(next) {
                        return Some(Ok(done));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(start: u64, length: u64, offset: u64) -> Extent {
        let file = Some("a".to_owned());
        let offset = Some(offset);
        Extent {
            start,
            length,
            depth: 0,
            present: true,
            zero: false,
            data: true,
            compressed: false,
            offset,
            file,
        }
    }

    fn joined(list: Vec<Extent>) -> Vec<Extent> {
        Joined::new(list.into_iter().map(Ok::<_, ()>)).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn neighbours_join_only_where_the_file_is_contiguous_too() {
        assert_eq!(joined(vec![data(0, 10, 100), data(10, 5, 110)]), [data(0, 15, 100)]);
        let apart = vec![data(0, 10, 100), data(10, 5, 111)];
        assert_eq!(joined(apart.clone()), apart);
    }

    #[test]
    fn neighbours_of_different_kinds_or_layers_stay_apart() {
        let plain = data(10, 5, 110);
        for other in [
            Extent { depth: 1, ..plain.clone() },
            Extent { zero: true, ..plain.clone() },
            Extent { data: false, ..plain.clone() },
            Extent { present: false, ..plain.clone() },
            Extent { compressed: true, ..plain.clone() },
            Extent { offset: None, ..plain.clone() },
            Extent { file: None, ..plain.clone() },
        ] {
            let list = vec![data(0, 10, 100), other];
            assert_eq!(joined(list.clone()), list);
        }
    }

    #[test]
    fn ranges_without_a_place_in_a_file_join() {
        let hole = |start| Extent { zero: true, data: false, offset: None, file: None, ..data(start, 10, 0) };
        assert_eq!(joined(vec![hole(0), hole(10), hole(20)]), [Extent { length: 30, ..hole(0) }]);
    }
}
