//! All tests of the format in one program: it is linked once.

mod header;
mod qemu;
