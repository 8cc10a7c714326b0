//! libvirt with our program in place of `qemu-img` and `qemu-nbd`: pools, volumes of every kind that it makes, and a machine whose disk is
//! snapshotted, committed, copied, resized, backed up and saved. QEMU and its tools read what is there afterwards.

mod daemon;
mod machine;
mod page;
mod printed;
mod volumes;
