//! All black-box suites in one program, a module each: it is linked once. `cargo xtask test --only SUITE` runs one.

mod awaited_locks;
mod confined;
mod differential;
mod drop_in;
mod faults;
mod flushes;
mod full_file_system;
mod fuse;
mod guest;
mod hostile;
mod kill;
mod locks;
mod matrix;
mod media;
mod neighbours;
mod qmp;
mod remote;
mod sandbox;
mod serve;
mod space;
mod throttle;
mod tools;
mod trace;
mod upgrade;
mod uploads;
mod vhost_user;
