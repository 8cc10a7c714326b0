//! Random commands on a lineage against a model: the shipped steps over simulated files, killed, failed and cut off from power at any change.
//!
//! A seed decides all of it. Images are made and read by the engine; what a power cut leaves is what was made durable, and some of the rest.

mod commands;
mod contract;
mod deliberate_bugs;
mod files;
mod images;
mod law;
mod machine;
mod transaction;
mod tree;
mod world;

pub(crate) use files::mounted as file_system;

use files::mount;
use sim::Rng;
use world::{Counts, World};

/// Commands of a sequence at most.
const COMMANDS_MAX: u64 = 24;

/// What the commands of a sequence are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// All that there are.
    Any,
    /// Those that make and remove layers, which are killed more often.
    Removals,
    /// Checkpoints, rollbacks and forks of disks that are often served; most are killed, or fail.
    Transactions,
}

impl Scope {
    /// A number for each command that is drawn: those of a kind lie side by side.
    fn draw(self, rng: &mut Rng) -> u64 {
        match self {
            Self::Any => rng.below(52),
            Self::Removals => rng.below(37),
            Self::Transactions if rng.chance(1, 6) => 37,
            Self::Transactions => rng.below(16),
        }
    }
}

/// Runs the sequence of a seed.
fn sequence(seed: u64, scope: Scope) -> Result<Counts, String> {
    let ran = run(seed, scope);
    mount(None);
    ran
}

fn run(seed: u64, scope: Scope) -> Result<Counts, String> {
    let mut world = World::new(seed)?;
    world.scope = scope;
    let commands = 4 + world.rng.below(COMMANDS_MAX - 3);
    let mut done = if world.rng.chance(1, 2) { world.prepare_chain() } else { Ok(()) };
    for _ in 0..commands {
        if done.is_err() {
            break;
        }
        done = world.step();
    }
    let done = done.and_then(|()| world.check_at_the_end());
    done.map(|()| world.counts).map_err(|error| format!("{error}\n{}", world.trace.join("\n")))
}

mod lineages {
    use sim::Sweep;

    use super::world::Counts;
    use super::{Scope, sequence};

    /// Sequences of the full tier.
    const FULL: u64 = 100_000;
    /// A tier that looks at a part of all simulations looks at one of so many of that part: each sequence takes milliseconds.
    const OF_PART: u64 = 5;

    #[test]
    fn any_sequence_of_commands_keeps_each_disk_and_each_checkpoint() {
        let mut all = Counts::default();
        let mut failed = None;
        let is_whole = sim::scaled(FULL) >= FULL;
        let count = if is_whole { FULL } else { FULL / OF_PART };
        let sequences = Sweep::from_environment("lineages", count).run(|seed| {
            if failed.is_none() {
                // What makes and removes layers is killed too rarely among all commands.
                let scope = [Scope::Any, Scope::Removals, Scope::Any, Scope::Transactions][seed as usize % 4];
                match sequence(seed, scope) {
                    Ok(counts) => all.add(&counts),
                    Err(error) => failed = Some((seed, error)),
                }
            }
            Ok(())
        });
        if let Some((seed, error)) = failed {
            let test = "simulated::lineages::any_sequence_of_commands_keeps_each_disk_and_each_checkpoint";
            panic!(
                "seed {seed}: {error}\nreplay: COWHAND_SIM_SEED={seed} cargo test -p cowhand-lineage --lib {test}"
            );
        }
        println!("looked at in lineages: {sequences} sequences of commands on lineages, {all}");
        let Counts { kills, power_cuts, failures, merges, lost_manifests, guest_writes, .. } = all;
        let met = [kills, power_cuts, failures, merges, lost_manifests, guest_writes];
        assert!(sequences < 1000 || met.iter().all(|count| *count > 0), "{all:?}");
    }
}
