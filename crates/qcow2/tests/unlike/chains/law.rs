//! What must be true of the images at any moment.

use qcow2::{Progress, Repair, check};
use sim::{CrashOptions, CrashStates, Tick, World};

use super::guest::same;
use super::images::Images;
use super::judge;

/// From `since` on, until another law of the same image takes its place, what opens an image reads these bytes.
#[derive(Clone, Debug)]
pub struct Law {
    pub image: usize,
    pub bytes: Vec<u8>,
    pub since: Tick,
}

/// All that holds.
#[derive(Clone, Debug, Default)]
pub struct Laws(Vec<Law>);

/// The end of a law whose image reads as nothing in particular.
const ANYTHING: Vec<u8> = Vec::new();

impl Laws {
    /// An image reads these bytes from the beginning on.
    pub fn begin(&mut self, image: usize, bytes: &[u8]) {
        self.0.push(Law { image, bytes: bytes.to_vec(), since: 0 });
    }

    /// From now on an image is whatever it is.
    pub fn end(&mut self, image: usize, world: &World) {
        self.0.push(Law { image, bytes: ANYTHING, since: world.tick() });
    }

    /// An image reads these bytes from now on.
    pub fn add(&mut self, image: usize, bytes: &[u8], world: &World) {
        self.0.push(Law { image, bytes: bytes.to_vec(), since: world.tick() });
    }

    /// What is said of images at `instant`.
    async fn hold(&self, images: &Images, world: &World, instant: Tick) -> Result<(), String> {
        for image in 0..images.list.len() {
            let said = self.0.iter().rfind(|law| law.image == image && law.since <= instant);
            let Some(law) = said.filter(|law| law.bytes != ANYTHING) else { continue };
            let found = images.read(world, image).await?;
            same(&found, &law.bytes, &images.list[image].name)?;
        }
        Ok(())
    }

    /// Every image is sound and reads as it must.
    pub async fn judge(&self, images: &Images, world: &World, instant: Tick) -> Result<(), String> {
        let is_made = |image| self.0.iter().any(|law| law.image == image && law.since <= instant);
        are_sound(images, world, &is_made).await?;
        self.hold(images, world, instant).await
    }
}

/// No image is worse than leaky, by two opinions; gives the leaks. One that is still being made need not have a header.
pub async fn are_sound(
    images: &Images,
    world: &World,
    is_made: &dyn Fn(usize) -> bool,
) -> Result<u64, String> {
    let mut leaks = 0;
    for (number, image) in images.list.iter().enumerate().filter(|(_, image)| !image.format.raw) {
        let name = &image.name;
        if !is_made(number) && judge::header(&world.current(image.disk)).is_err() {
            continue;
        }
        let mut found = Vec::new();
        let mut listen = |seen: Progress<'_>| {
            if let Progress::Found(finding) = seen {
                found.push(finding.to_string());
            }
        };
        let report = check(&world.open(image.disk), Repair::None, &mut listen).await;
        let report = report.map_err(|error| format!("{name}: {error}"))?;
        if report.corruptions + report.check_errors > 0 {
            return Err(format!("{name}: {report:?}: {}", found.join("; ")));
        }
        judge::check(&world.current(image.disk), &[]).map_err(|error| format!("{name}: {error}"))?;
        leaks += report.leaks;
    }
    Ok(leaks)
}

/// Looks at what crashes leave of a recorded run, a sample of all; gives how many.
pub fn after_crashes(
    images: &Images,
    laws: &Laws,
    recorded: &World,
    seed: u64,
    share: (u64, u64),
) -> Result<u64, String> {
    let options = CrashOptions { seed, exhaustive_atoms_max: 3, samples: 4, tears: 1, share };
    let mut count = 0;
    for state in CrashStates::new(&recorded.recording(), &[], options) {
        count += 1;
        let (world, _disks) = state.boot(seed);
        let judged = sim::run(&world, seed, async |sim| laws.judge(images, sim.world(), state.instant).await);
        judged.map_err(|stuck| stuck.to_string()).flatten().map_err(|error| format!("{error}\n{state}"))?;
    }
    Ok(count)
}
