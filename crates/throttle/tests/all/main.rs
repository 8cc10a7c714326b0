//! All tests of the limits in one program: it is linked once.

mod accuracy;
mod bursts;
mod laws;
mod reference;
mod shares;
mod steering;
mod world;
