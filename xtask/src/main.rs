//! `cargo xtask`: what the project does with itself, each with all that it needs.

#![forbid(unsafe_code)]

mod bench;
mod beside;
mod book;
mod coverage;
mod figures;
mod fuzz;
mod interleave;
mod library;
mod package;
mod packages;
mod peers;
mod quick;
mod schema_diff;
mod sim;
mod stage;
mod test;
mod test_programs;
mod tidy;
mod watched;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGQUIT};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "What the project does with itself")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the server side by side with qemu-nbd and nbdkit
    Bench(bench::Args),
    /// Make a book of HTML of the pages of docs/, with the generated ones
    Book(book::Args),
    /// Say which lines of format, map cache and engine their tests reach
    Coverage(coverage::Args),
    /// Run everything that counts what it looks at, and print the table of docs/internals/testing.md
    Figures(figures::Args),
    /// Search for inputs that break what reads foreign bytes
    Fuzz(fuzz::Args),
    /// Simulate crashes, faults and clients of the engine, from a seed
    Sim(sim::Args),
    /// Explore thread interleavings of the map cache and the engine
    Interleave(interleave::Args),
    /// Build the library as others link it: its features one by one, the example of its page, packages for a registry
    Library(library::Args),
    /// Make Debian packages, and test them in a clean Debian
    Package(package::Args),
    /// Install what the tests compare with (as root, on Debian), and unpack QEMU of other releases beside the system's
    Peers(peers::Args),
    /// Check one crate and run its tests, within a minute
    Quick(quick::Args),
    /// Compare QMP and the options of the tools with QEMU's of two releases, and hold docs/reference/compat.md against that
    SchemaDiff(schema_diff::Args),
    /// Hold what the tree says of itself against the tree
    Tidy(tidy::Args),
    /// Install what the tests compare with (as root, on Debian), then run the first tier of the tests, or all of them
    Test(test::Args),
}

fn main() -> ExitCode {
    // Started in the background of a script it ignores them, and so would all that the tests start. SIGHUP stays ignored under nohup.
    black_box::default_signals::default_in_programs(&[SIGINT, SIGQUIT]);
    match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Book(args) => book::run(&args),
        Command::Coverage(args) => coverage::run(&args),
        Command::Figures(args) => figures::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::SchemaDiff(args) => schema_diff::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Interleave(args) => interleave::run(&args),
        Command::Library(args) => library::run(&args),
        Command::Package(args) => package::run(&args),
        Command::Peers(args) => peers::run(&args),
        Command::Quick(args) => quick::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Tidy(args) => tidy::run(&args),
    }
}
