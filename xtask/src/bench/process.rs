//! Programs that are run to their end, and what they cost.

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use rustix::process::{Pid, Signal, kill_process};

/// How often a running program's memory is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Programs that run at the moment, for [`end_all`]. Code that starts one or touches the directory of
/// images holds this, so nothing of that happens once a signal has come.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// What a program said and took.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Its standard output.
    pub text: String,
    /// Its standard error.
    pub errors: String,
    /// CPU time in microseconds: user, system.
    pub cpu_us: (f64, f64),
    /// The most memory it was seen to have, in bytes.
    pub resident_bytes_max: u64,
    /// Wall time in seconds, from its start to its end.
    pub seconds: f64,
}

/// Runs a program to its end.
///
/// # Errors
/// With everything it said, if it fails.
pub fn run(command: &mut Command) -> Result<Outcome, String> {
    let shown = shown(command);
    let (before, start) = (children_us(), Instant::now());
    let (child, running) = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let watch = std::thread::spawn({
        let id = child.id();
        move || resident_max(id)
    });
    let output = child.wait_with_output().map_err(|error| format!("{shown}: {error}"))?;
    drop(running);
    let (seconds, after) = (start.elapsed().as_secs_f64(), children_us());
    let resident_bytes_max = watch.join().unwrap_or(0);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{shown}: {}: {text}{errors}", output.status));
    }
    Ok(Outcome {
        text,
        errors,
        cpu_us: (after.0 - before.0, after.1 - before.1),
        resident_bytes_max,
        seconds,
    })
}

/// Starts a program that a signal to this one ends.
pub fn spawn(command: &mut Command) -> Result<(Child, Running), String> {
    let mut running = lock();
    let child = command
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot run {}: {error}", shown(command)))?;
    running.push(child.id());
    let id = child.id();
    Ok((child, Running(id)))
}

/// Programs that run; blocks for good once a signal ends this program.
pub fn lock() -> MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The command line, for messages.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// CPU time of all children that were waited for: one at a time here, so a difference is one child's.
fn children_us() -> (f64, f64) {
    let micros = |time: TimeVal| time.num_microseconds() as f64;
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_or((0.0, 0.0), |usage| (micros(usage.user_time()), micros(usage.system_time())))
}

/// Follows a process to its end; the most memory it was seen to have.
fn resident_max(id: u32) -> u64 {
    let mut most = 0;
    while let Some(bytes) = resident(id) {
        most = most.max(bytes);
        std::thread::sleep(LOOK_INTERVAL);
    }
    most
}

/// The most memory of a process so far; `None` once it has ended.
pub fn resident(id: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// CPU time of this program so far, without its children's, in seconds.
pub fn own_cpu_seconds() -> f64 {
    cpu_seconds(std::process::id())
}

/// CPU time of a running program so far, user and system together, in seconds.
pub fn cpu_seconds(id: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // Behind the name in parentheses come the state and ten more fields before utime and stime.
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks =
        |at: usize| behind_name.split_whitespace().nth(at).and_then(|field| field.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

/// Uses free memory, `bytes` of it or half of what there is, and gives it back. Of a virtual machine the host takes back what lies idle, and
/// whatever is measured next would pay for getting it again: a copy through the page cache took five times as long.
pub fn touch_memory(bytes: u64) {
    const PAGE_BYTES: usize = 4096;
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok());
    // In KiB.
    let bytes = bytes.min(free.unwrap_or(0) * 1024 / 2);
    let mut memory = vec![0_u8; usize::try_from(bytes).unwrap_or(0)];
    memory.chunks_mut(PAGE_BYTES).for_each(|page| page[0] = 1);
    std::hint::black_box(&memory);
}

/// A program that a signal to this one must end.
#[derive(Debug)]
pub struct Running(u32);

impl Drop for Running {
    fn drop(&mut self) {
        lock().retain(|id| *id != self.0);
    }
}

/// Ends every program that runs, and keeps others from starting for as long as the result lives.
pub fn end_all() -> MutexGuard<'static, Vec<u32>> {
    let running = lock();
    for id in running.iter().filter_map(|id| i32::try_from(*id).ok()).filter_map(Pid::from_raw) {
        // It may have ended by itself.
        let _ = kill_process(id, Signal::KILL);
    }
    running
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_an_error_with_what_it_said() {
        let error = run(Command::new("sh").args(["-c", "echo out; echo why >&2; exit 3"])).unwrap_err();
        assert!(error.contains("why") && error.contains("out") && error.contains("exit 3"), "{error}");
        assert!(run(&mut Command::new("/no/such/program")).is_err());
    }

    #[test]
    fn the_cpu_time_of_a_program_is_reported() {
        let outcome =
            run(Command::new("sh").args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]));
        let (user, _) = outcome.unwrap().cpu_us;
        assert!(user > 1000.0, "{user} us");
    }
}
