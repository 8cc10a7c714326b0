//! Every copy there is, between images that are not alike: clusters of 512 bytes to 2 MiB, subclusters, versions, data files, raw files, lengths,
//! compressed clusters.
//!
//! A seed decides the case, the guests and the order of all requests. In the seeds of one run each pair of values that can occur together does.

mod chains;

#[path = "../all/harness/judge.rs"]
#[allow(dead_code, clippy::allow_attributes, reason = "each test program uses its own part of this")]
mod judge;

/// The tests that `cargo xtask sim unlike` runs.
mod unlike {
    use std::ops::RangeInclusive;

    use sim::Sweep;

    use super::chains::{Kind, ROUND, case, pairs_covered, run};

    /// Runs the seeds of these kinds, all of them, so that a failure says which others there are.
    fn run_kinds(name: &str, kinds: RangeInclusive<Kind>) {
        let (mut workloads, mut states, mut failed) = (0, 0, Vec::new());
        sweep().run(|seed| {
            if kinds.contains(&case(seed).kind()) && failed.len() < FAILED_MAX {
                workloads += 1;
                match run(seed) {
                    Ok(looked_at) => states += looked_at,
                    Err(failure) => failed.push((seed, failure)),
                }
            }
            Ok(())
        });
        println!(
            "looked at in unlike {name}: {workloads} unlike chains, {states} crash states of unlike chains"
        );
        let seeds: Vec<u64> = failed.iter().map(|(seed, _)| *seed).collect();
        if let Some((seed, first)) = failed.into_iter().next() {
            let first = first.replayed_by(format!("cargo xtask sim --seed {seed} unlike::{name}"));
            panic!("seeds {seeds:?} fail; seed {seed}: {first}");
        }
    }

    /// Rounds of the full tier, each with cases of its own: as far as the last of the seeds that find a fault which was put in on purpose.
    const FULL: u64 = 13;

    /// The seeds of a run: whole rounds. Each test has its kinds of one and the same, for pairs of what they do not differ in.
    fn sweep() -> Sweep {
        Sweep::from_environment("unlike", FULL * ROUND).in_rounds_of(ROUND)
    }

    /// A run ends after so many failures.
    const FAILED_MAX: usize = 20;

    #[test]
    fn commits() {
        run_kinds("commits", Kind::CommitTop..=Kind::CommitSeveralMiddle);
    }

    #[test]
    fn streams() {
        run_kinds("streams", Kind::Stream..=Kind::StreamMiddleToBase);
    }

    #[test]
    fn mirrors() {
        run_kinds("mirrors", Kind::MirrorFull..=Kind::MirrorNone);
    }

    #[test]
    fn backups() {
        run_kinds("backups", Kind::BackupFull..=Kind::BackupIncremental);
    }

    #[test]
    fn tools() {
        run_kinds("tools", Kind::Flatten..=Kind::Compact);
    }

    /// A fault that needs two values shows in one seed that has both, if there is nothing else to it.
    #[test]
    fn each_pair_of_values_that_can_occur_together_does() {
        let seeds = sweep().seeds();
        let (covered, possible) = pairs_covered(seeds.clone());
        println!("pairs of values covered: {covered} of {possible} that are possible, in seeds {seeds:?}");
        assert!(covered == possible || sweep().is_asked_for(), "{covered} of {possible}");
        assert!(possible >= PAIRS_MIN, "{possible} pairs are possible: a rule excludes more than it should");
    }

    const PAIRS_MIN: usize = 6500;
}
