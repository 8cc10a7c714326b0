//! A hostile image is just an error message: whatever its bytes say, opening, `info`, `check`, `map`
//! and repair end in order within a second and 256 MiB, serving it gives an error or the right
//! bytes, and guest data never lands in its header.

#![forbid(unsafe_code)]

mod chains;
mod entry;
mod free_space;
mod header;
mod mutation;
mod raw;
mod reference;
mod table_places;
mod trial;
mod victim;

use black_box::Scratch;

use trial::{Expect, Trial, place};
use victim::{Kind, Victim};

/// What is done to an image.
type Damage = fn(&mut Victim);

/// One row of a table: what it is called, what is asked, what the refusal must say, and the damage.
type Row = (&'static str, Expect, &'static str, Damage);

/// Runs a table of cases on fresh copies of one image.
fn run(kind: Kind, rows: &[Row]) {
    let original = Victim::new(kind);
    for (name, expect, says, damage) in rows {
        let mut victim = original.clone();
        damage(&mut victim);
        run_one(name, *expect, says, &victim);
    }
}

/// Runs one case on an image that is complete in one file.
fn run_one(name: &str, expect: Expect, says: &str, victim: &Victim) {
    let scratch = Scratch::new();
    place(&scratch, &victim.bytes).expect("cannot write an image");
    Trial { name, scratch: &scratch, expect, says, disk: &victim.disk, layers: 1 }.run();
}
