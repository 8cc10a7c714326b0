//! Which parts of a piece have to be written.

use memory::IoBytes;

/// What the target reads as before a piece is written.
#[derive(Clone, Debug)]
pub(crate) enum Before {
    /// Nothing is known.
    Unknown,
    /// Zeroes.
    Zeroes,
    /// These bytes, as many as the piece has.
    Bytes(IoBytes),
}

/// What a part of a piece needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: the target reads so.
    Nothing,
    /// It must be made zeroes.
    Zero,
    /// It must be written.
    Data,
}

/// A part of a piece, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) need: Need,
}

/// Splits `bytes`, which go to `offset` of the target, into runs of one need. A run consists of whole blocks of `granularity`
/// bytes that begin at multiples of it in the target; the piece's own ends count as such.
pub(crate) fn runs(bytes: &IoBytes, before: &Before, offset: u64, granularity: u64) -> Vec<Run> {
    debug_assert!(granularity > 0);
    let mut runs: Vec<Run> = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let at = offset + start as u64;
        let next = (at / granularity + 1).saturating_mul(granularity);
        // Both are at most the piece's length.
        let end = (next - offset).min(bytes.len() as u64) as usize;
        let need = need(&bytes.slice(start, end), before, start);
        match runs.last_mut() {
            Some(last) if last.need == need => last.end = end,
            _ => runs.push(Run { start, end, need }),
        }
        start = end;
    }
    runs
}

fn need(block: &IoBytes, before: &Before, start: usize) -> Need {
    match before {
        Before::Bytes(bytes) if bytes.slice(start, start + block.len())[..] == block[..] => Need::Nothing,
        Before::Zeroes if block.is_zero() => Need::Nothing,
        _ if block.is_zero() => Need::Zero,
        _ => Need::Data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8], before: &Before, offset: u64) -> Vec<(usize, usize, Need)> {
        let runs = runs(&IoBytes::copy_from(bytes), before, offset, 4);
        runs.into_iter().map(|run| (run.start, run.end, run.need)).collect()
    }

    #[test]
    fn zeroes_are_found_in_whole_blocks_of_the_target() {
        use Need::{Data, Zero};
        assert_eq!(found(&[0; 8], &Before::Unknown, 0), [(0, 8, Zero)]);
        assert_eq!(
            found(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 1], &Before::Unknown, 0),
            [(0, 4, Data), (4, 8, Zero), (8, 10, Data)]
        );
        assert_eq!(found(&[0, 0, 1, 0, 0, 0], &Before::Unknown, 2), [(0, 2, Zero), (2, 6, Data)]);
        assert_eq!(found(&[], &Before::Unknown, 0), []);
    }

    #[test]
    fn what_the_target_reads_as_needs_nothing() {
        use Need::{Data, Nothing, Zero};
        assert_eq!(found(&[0, 0, 0, 0, 1], &Before::Zeroes, 0), [(0, 4, Nothing), (4, 5, Data)]);
        let before = Before::Bytes(IoBytes::copy_from(&[7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0]));
        let bytes = [7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(found(&bytes, &before, 0), [(0, 4, Nothing), (4, 8, Zero), (8, 12, Data)]);
    }
}
