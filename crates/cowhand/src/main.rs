//! cowhand: qcow2 disks, served.
fn main() {}
