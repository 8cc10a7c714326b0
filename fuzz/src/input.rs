//! Bytes of a case as a stream of decisions.

/// Reads decisions off the front of a case; behind its end everything is zero.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// All of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// The next bit of a decision.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// The next `bytes` (at most 8) as a big-endian number.
    pub fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes.min(8)).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// A number below `end`, 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        let bytes = match end {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            0x1_0001..=0x1_0000_0000 => 4,
            _ => 8,
        };
        self.number(bytes) % end.max(1)
    }

    /// One of `things`, which are not none.
    pub fn pick<'t, T>(&mut self, things: &'t [T]) -> &'t T {
        let index = usize::try_from(self.below(things.len() as u64)).unwrap_or(0);
        &things[index]
    }

    /// At most `len` of the next bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Everything that is left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }
}
