//! All tests of the simulation itself in one program: it is linked once.

mod accuses_nobody;
mod finds_bugs;
mod flat;
mod storage_contract;
mod toy;
