//! Which of several readings of one range holds, sector by sector. Pure.

use std::ops::Range;

use block::SECTOR_BYTES;

/// A voter whose bytes are not those of the most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outvoted {
    /// The voter's place among the readings.
    pub voter: usize,
    /// Whose bytes hold there.
    pub winner: usize,
    /// Bytes of the readings.
    pub range: Range<usize>,
}

/// Votes over readings of one length that begin at `offset` of the disk; sectors are those of the disk. Among versions with as many votes
/// that of the first voter holds. Gives the parts where voters were outvoted. Costs one comparison of each reading with the first one where all agree.
///
/// # Errors
/// The first byte of the first sector that fewer than `threshold` voters agree on.
pub fn vote(readings: &[&[u8]], offset: u64, threshold: usize) -> Result<Vec<Outvoted>, usize> {
    let mut outvoted: Vec<Outvoted> = Vec::new();
    let Some((first, others)) = readings.split_first() else { return Err(0) };
    if readings.len() >= threshold && others.iter().all(|other| other == first) {
        return Ok(outvoted);
    }
    let mut start = 0;
    while start < first.len() {
        let into_sector = ((offset + start as u64) % SECTOR_BYTES) as usize;
        let end = first.len().min(start + SECTOR_BYTES as usize - into_sector);
        let part = |voter: usize| readings.get(voter).and_then(|reading| reading.get(start..end));
        let votes = |voter: usize| (0..readings.len()).filter(|other| part(*other) == part(voter)).count();
        let most = (0..readings.len()).rev().max_by_key(|voter| votes(*voter)).unwrap_or(0);
        if votes(most) < threshold {
            return Err(start);
        }
        for voter in (0..readings.len()).filter(|voter| part(*voter) != part(most)) {
            let last = outvoted.iter_mut().rfind(|known| known.voter == voter);
            match last {
                Some(known) if known.range.end == start && known.winner == most => known.range.end = end,
                _ => outvoted.push(Outvoted { voter, winner: most, range: start..end }),
            }
        }
        start = end;
    }
    Ok(outvoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(sectors: &[u8]) -> Vec<u8> {
        sectors.iter().flat_map(|value| [*value; 512]).collect()
    }

    fn outvoted(voter: usize, winner: usize, range: Range<usize>) -> Outvoted {
        Outvoted { voter, winner, range }
    }

    fn voted(readings: &[Vec<u8>], offset: u64, threshold: usize) -> Result<Vec<Outvoted>, usize> {
        let readings: Vec<&[u8]> = readings.iter().map(Vec::as_slice).collect();
        vote(&readings, offset, threshold)
    }

    #[test]
    fn each_sector_is_voted_on_by_itself() {
        let good = reading(&[1, 2, 3, 4]);
        assert_eq!(voted(&[good.clone(), good.clone(), good.clone()], 0, 2), Ok(vec![]));
        // As a whole no two of them agree.
        let (first, last) = (reading(&[9, 9, 3, 4]), reading(&[1, 2, 3, 9]));
        let found = voted(&[first, good.clone(), last], 0, 2);
        assert_eq!(found, Ok(vec![outvoted(0, 1, 0..1024), outvoted(2, 0, 1536..2048)]));
    }

    #[test]
    fn sectors_are_those_of_the_disk() {
        let good = vec![1; 1000];
        let mut bad = good.clone();
        bad[150] = 2;
        let found = voted(&[good.clone(), bad, good], 400, 2);
        assert_eq!(found, Ok(vec![outvoted(1, 0, 112..624)]));
    }

    #[test]
    fn too_few_that_agree_are_reported_with_their_place() {
        let (good, bad) = (reading(&[1, 2]), reading(&[1, 3]));
        assert_eq!(voted(&[good.clone(), bad.clone()], 0, 2), Err(512));
        assert_eq!(voted(&[good.clone(), bad.clone(), reading(&[1, 4])], 0, 2), Err(512));
        assert_eq!(voted(std::slice::from_ref(&good), 0, 2), Err(0));
        assert_eq!(voted(&[good, bad], 0, 1), Ok(vec![outvoted(1, 0, 512..1024)]));
    }
}
